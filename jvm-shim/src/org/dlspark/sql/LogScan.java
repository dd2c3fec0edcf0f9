package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * One read of a table in one query, done by the Python connector's scan with the columns, filters and limit of the query.
 *
 * <p>The Python connector makes its plan once, when Spark asks for it first, so that an adaptive plan reads what the first
 * one did. Where Spark runs that plan again in another execution ({@link PlainRead}), tasks bring it up to date.
 */
final class LogScan implements SupportsReportStatistics, Batch {

  private final LogTable table;
  private final StructType columns;
  private final CaseInsensitiveStringMap options;
  private final ObjectNode pushed;
  private final QuerySnapshot snapshot;
  private final Scan python;
  private Batch planned;
  private InputPartition[] partitions;
  private boolean streaming;
  private Statistics statistics;

  LogScan(
      LogTable table,
      StructType columns,
      CaseInsensitiveStringMap options,
      ObjectNode pushed,
      QuerySnapshot snapshot) {
    this.table = table;
    this.columns = columns;
    this.options = options;
    this.pushed = pushed;
    this.snapshot = snapshot;
    this.python = pythonScan(pushed);
  }

  /** The Python connector's scan: a new one each time, as it keeps the first plan that it is asked for. */
  private Scan pythonScan(ObjectNode words) {
    SupportsRead source = (SupportsRead) table.pythonTable(columns, options, words);
    return source.newScanBuilder(table.options(options, words)).build();
  }

  @Override
  public StructType readSchema() {
    return columns;
  }

  @Override
  public String description() {
    return "distributedlog " + table.name() + " " + Requests.write(pushed);
  }

  @Override
  public Batch toBatch() {
    return this;
  }

  @Override
  public InputPartition[] planInputPartitions() {
    return plan().partitions;
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return plan().planned.createReaderFactory();
  }

  private LogScan plan() {
    synchronized (snapshot) {
      if (planned == null) {
        ObjectNode words = snapshot.into(pushed);
        PlainRead.executionOf(this).ifPresent(execution -> words.put("planned_in", execution));
        LocatedBatch batch = new LocatedBatch(pythonScan(words).toBatch());
        partitions = batch.planInputPartitions();
        snapshot.learn(LocatedBatch.seen(partitions));
        planned = batch;
      }
    }
    return this;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
    streaming = true;
    return python.toMicroBatchStream(checkpointLocation);
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return python.columnarSupportMode();
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return python.supportedCustomMetrics();
  }

  /**
   * Asked for only where Spark weighs plans, so that a plain read pays nothing for it. Of a stream nothing is known: what a
   * batch of it reads is not what the scan's options say, and some of them no batch query has.
   */
  @Override
  public Statistics estimateStatistics() {
    if (statistics == null) {
      JsonNode answer =
          table.takesPushDown() && !streaming
              ? table.askAboutScan(Requests.request("statistics"), options, pushed)
              : Requests.JSON.nullNode();
      statistics = new Extent(number(answer, "bytes"), number(answer, "rows"));
    }
    return statistics;
  }

  private static OptionalLong number(JsonNode answer, String name) {
    return answer.hasNonNull(name) ? OptionalLong.of(answer.get(name).asLong()) : OptionalLong.empty();
  }

  /** How much a scan reads: stored bytes of one replica, and records. */
  private record Extent(OptionalLong sizeInBytes, OptionalLong numRows) implements Statistics {}
}
