package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * One log as a table, or one of the namespace's metadata tables. Reading and writing is the Python connector's; this
 * class hands on which table it is, and what Spark's planner has found out ({@link LogScanBuilder}).
 *
 * <p>What Python has to know again about the table travels unread from the answer to {@code load} into the options of
 * each read and write ({@code handle}): its log, its properties, its end where an older version was asked for.
 */
class LogTable implements SupportsRead, SupportsWrite {

  /** Option that carries {@code handle}. */
  private static final String HANDLE = "dlspark.catalog.table";

  /** Option that carries what the planner pushed down. */
  private static final String SCAN = "dlspark.catalog.scan";

  private static final Set<TableCapability> READ = Set.of(TableCapability.BATCH_READ);

  // TRUNCATE is there so that INSERT OVERWRITE is refused by the connector, which says why, and not by Spark.
  private static final Set<TableCapability> READ_AND_WRITE =
      Set.of(
          TableCapability.BATCH_READ,
          TableCapability.MICRO_BATCH_READ,
          TableCapability.BATCH_WRITE,
          TableCapability.STREAMING_WRITE,
          TableCapability.TRUNCATE,
          TableCapability.ACCEPT_ANY_SCHEMA);

  private final Requests requests;
  private final Identifier ident;
  private final String name;
  private final JsonNode about;
  private final Column[] columns;
  private final StructType schema;

  /** {@code about} is Python's answer to {@code load}. */
  LogTable(Requests requests, String catalog, Identifier ident, JsonNode about) {
    this.requests = requests;
    this.ident = ident;
    this.name = catalog + "." + ident;
    this.about = about;
    JsonNode found = about.get("columns");
    columns = new Column[found.size()];
    StructType fields = new StructType();
    for (int i = 0; i < columns.length; i++) {
      JsonNode column = found.get(i);
      DataType type = DataType.fromDDL(column.get("type").asText());
      columns[i] = Column.create(column.get("name").asText(), type, true, column.get("comment").asText(), null);
      fields = fields.add(columns[i].name(), type);
    }
    schema = fields;
  }

  @Override
  public String name() {
    return name;
  }

  /** What a streaming query's progress calls its sink and source. */
  @Override
  public String toString() {
    return "DistributedLog[" + name + "]";
  }

  @Override
  public Column[] columns() {
    return columns;
  }

  @Override
  public Map<String, String> properties() {
    Map<String, String> properties = new TreeMap<>();
    about.get("properties").properties().forEach(one -> properties.put(one.getKey(), one.getValue().asText()));
    return properties;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return about.get("writable").asBoolean() ? READ_AND_WRITE : READ;
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new LogScanBuilder(this, options);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    SupportsWrite python = (SupportsWrite) pythonTable(schema, info.options(), null);
    return python.newWriteBuilder(new TableWriteInfo(info, options(info.options(), null)));
  }

  // ------------------------------------------------------------------ for scans

  StructType readSchema() {
    return schema;
  }

  /** Whether filters, limits and aggregates can be pushed: metadata tables are made whole. */
  boolean takesPushDown() {
    return about.get("pushdown").asBoolean();
  }

  /** Asks Python something about this table. */
  JsonNode ask(ObjectNode request) {
    return requests.ask(request, Errors.ofTable(ident));
  }

  /** Asks about the rows of one read, of which Python has to know the options and what was pushed down. */
  JsonNode askAboutScan(ObjectNode request, CaseInsensitiveStringMap given, JsonNode pushed) {
    ObjectNode all = request.putObject("options");
    options(given, pushed).asCaseSensitiveMap().forEach(all::put);
    return ask(request);
  }

  /** The options of one read or write of this table: the query's own, the table's, what was pushed down. */
  CaseInsensitiveStringMap options(CaseInsensitiveStringMap given, JsonNode pushed) {
    Map<String, String> all = new HashMap<>(given.asCaseSensitiveMap());
    all.put(HANDLE, Requests.write(about.get("handle")));
    if (pushed != null) {
      all.put(SCAN, Requests.write(pushed));
    }
    return new CaseInsensitiveStringMap(all);
  }

  /** The Python connector's table with some of the columns. */
  Table pythonTable(StructType columns, CaseInsensitiveStringMap given, JsonNode pushed) {
    return requests.pythonTable(columns, options(given, pushed).asCaseSensitiveMap());
  }
}
