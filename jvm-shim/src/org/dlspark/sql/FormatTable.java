package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What {@code format("distributedlog")} names by its options: one log or several, or a metadata table.
 *
 * <p>Two of them are never the same to Spark, whatever their options: a frame that is loaded again reads the logs again,
 * and not the rows that another frame has cached.
 */
public final class FormatTable extends LogTable {

  private static final String METADATA = "metadata";

  private static final Set<TableCapability> CAPABILITIES =
      Set.of(
          TableCapability.BATCH_READ,
          TableCapability.MICRO_BATCH_READ,
          TableCapability.BATCH_WRITE,
          TableCapability.STREAMING_WRITE,
          TableCapability.TRUNCATE);

  private final String metadata;
  private volatile StructType schema;
  private volatile boolean checked;

  /**
   * {@code schema} is what Python says of the options, or, if {@code given}, what the user has said in its place, or the
   * columns of what is to be written.
   */
  public FormatTable(StructType schema, boolean given, CaseInsensitiveStringMap options) {
    super(Requests.ofFormat(), Errors.ofFormat());
    this.schema = schema;
    this.metadata = options.getOrDefault(METADATA, "");
    this.checked = !given;
  }

  /**
   * Columns that the user has named are checked all: a query may need but some of them. Where they are the log's own, Python
   * says which version they are of.
   */
  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    if (!checked) {
      ObjectNode request = Requests.request("columns").put("schema", schema.json()).put("metadata", metadata);
      JsonNode found = askAboutScan(request, options, Requests.JSON.createObjectNode());
      schema = (StructType) DataType.fromJson(found.asText());
      checked = true;
    }
    return super.newScanBuilder(options);
  }

  @Override
  public String name() {
    return Requests.FORMAT;
  }

  @Override
  public Column[] columns() {
    Column[] columns = new Column[schema.length()];
    for (int i = 0; i < columns.length; i++) {
      StructField one = schema.apply(i);
      columns[i] = Column.create(one.name(), one.dataType(), one.nullable(), null, one.metadata().json());
    }
    return columns;
  }

  /** What a streaming query's progress calls its sink. */
  @Override
  public String toString() {
    return "DistributedLog";
  }

  @Override
  public Set<TableCapability> capabilities() {
    return CAPABILITIES;
  }

  @Override
  StructType readSchema() {
    return schema;
  }

  @Override
  boolean takesPushDown() {
    return metadata.isEmpty();
  }

  @Override
  CaseInsensitiveStringMap options(CaseInsensitiveStringMap given) {
    return given;
  }
}
