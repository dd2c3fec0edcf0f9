package org.dlspark.sql;

import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingWriterFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Python's plan of one batch, used for those of the same query that follow it within a minute, where small batches of the
 * query may be appended without Python. Spark makes a write for each batch, and a table for each query.
 */
final class SmallPlan {

  private static final long HOLDS_NS = 60_000_000_000L;

  private final String query;
  private final StructType schema;
  private final CaseInsensitiveStringMap options;
  private PythonStreamingWriterFactory planned;
  private long plannedAt;

  SmallPlan(LogicalWriteInfo info) {
    this.query = info.queryId();
    this.schema = info.schema();
    this.options = info.options();
  }

  boolean isOf(LogicalWriteInfo info) {
    return query.equals(info.queryId()) && schema.equals(info.schema()) && options.equals(info.options());
  }

  /** The plan that holds now, or null. */
  synchronized PythonStreamingWriterFactory held() {
    return planned != null && System.nanoTime() - plannedAt < HOLDS_NS ? planned : null;
  }

  /** Holds a plan from now on, and returns it; null: small batches are Python's as well, and each is planned. */
  synchronized PythonStreamingWriterFactory hold(StreamingDataWriterFactory factory) {
    planned =
        factory instanceof PythonStreamingWriterFactory one && SmallBatches.of(one.pickledWriteFunc()) != null
            ? one
            : null;
    plannedAt = System.nanoTime();
    return planned;
  }
}
