package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Logs, or a metadata table, as a table of Spark's: by its name in the catalog ({@link CatalogTable}), or by {@code
 * format("distributedlog")} ({@link FormatTable}). Reading and writing is the Python connector's; this class hands on
 * which table it is, and what Spark's planner has found out ({@link LogScanBuilder}).
 *
 * <p>A table has no state of one read: Spark makes one for a frame's whole life, and reads it many times at once. Of writes
 * it keeps the plan of the last streaming query's batches ({@link SmallPlan}).
 */
abstract class LogTable implements SupportsRead, SupportsWrite {

  /** Option that carries what the planner pushed down. */
  private static final String SCAN = "dlspark.catalog.scan";

  /** Key of a column's metadata; {@code dlspark/spark/schema_version.py} in Python. */
  private static final String DECLARED = "dlspark";

  private final Requests requests;
  private final Errors errors;
  private SmallPlan plan;

  LogTable(Requests requests, Errors errors) {
    this.requests = requests;
    this.errors = errors;
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new LogScanBuilder(this, options);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    CaseInsensitiveStringMap all = options(info.options());
    SupportsWrite python = (SupportsWrite) requests.pythonTable(readSchema(), all.asCaseSensitiveMap());
    TableWriteInfo own = new TableWriteInfo(info, all);
    return new LogWriteBuilder(python.newWriteBuilder(own), planOf(own));
  }

  private synchronized SmallPlan planOf(LogicalWriteInfo info) {
    if (plan == null || !plan.isOf(info)) {
      plan = new SmallPlan(info);
    }
    return plan;
  }

  /** The table's columns. */
  abstract StructType readSchema();

  /** Whether limits and aggregates can be pushed, and filters be kept: metadata tables are made whole. */
  abstract boolean takesPushDown();

  /**
   * Which version of what a log declares the columns are, as Python says in the metadata of each; null where they are
   * those of records.
   */
  JsonNode declared() {
    for (StructField column : readSchema().fields()) {
      if (column.metadata().contains(DECLARED)) {
        return Requests.read(column.metadata().getMetadata(DECLARED).json());
      }
    }
    return null;
  }

  /** The options of one read or write of this table, of which {@code given} are the query's own. */
  abstract CaseInsensitiveStringMap options(CaseInsensitiveStringMap given);

  // ------------------------------------------------------------------ for scans

  /** Asks Python something about this table. */
  JsonNode ask(ObjectNode request) {
    return requests.ask(request, errors);
  }

  /** Asks about the rows of one read, of which Python has to know the options and what was pushed down. */
  JsonNode askAboutScan(ObjectNode request, CaseInsensitiveStringMap given, JsonNode pushed) {
    ObjectNode all = request.putObject("options");
    options(given, pushed).asCaseSensitiveMap().forEach(all::put);
    return ask(request);
  }

  /** The options of one read, what was pushed down among them. */
  CaseInsensitiveStringMap options(CaseInsensitiveStringMap given, JsonNode pushed) {
    Map<String, String> all = new HashMap<>(options(given).asCaseSensitiveMap());
    all.put(SCAN, Requests.write(pushed));
    return new CaseInsensitiveStringMap(all);
  }

  /** The Python connector's table with some of the columns: a new one each time. */
  Table pythonTable(StructType columns, CaseInsensitiveStringMap given, JsonNode pushed) {
    return requests.pythonTable(columns, options(given, pushed).asCaseSensitiveMap());
  }
}
