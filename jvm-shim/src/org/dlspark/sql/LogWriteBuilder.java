package org.dlspark.sql;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;

/** One write, done by the Python connector's; of a streaming query small batches take a shorter way ({@link SmallWrite}). */
record LogWriteBuilder(WriteBuilder python, SmallPlan plan) implements WriteBuilder, SupportsTruncate {

  @Override
  public WriteBuilder truncate() {
    return ((SupportsTruncate) python).truncate(); // which Python refuses
  }

  @Override
  public Write build() {
    return new LogWrite(python.build(), plan);
  }

  private record LogWrite(Write python, SmallPlan plan) implements Write {

    @Override
    public String description() {
      return python.description();
    }

    @Override
    public BatchWrite toBatch() {
      return python.toBatch();
    }

    @Override
    public StreamingWrite toStreaming() {
      return new SmallWrite(python.toStreaming(), plan);
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
      return python.supportedCustomMetrics();
    }

    @Override
    public CustomTaskMetric[] reportDriverMetrics() {
      return python.reportDriverMetrics();
    }

    @Override
    public String toString() {
      return python.toString();
    }
  }
}
