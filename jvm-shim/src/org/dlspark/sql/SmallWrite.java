package org.dlspark.sql;

import java.util.List;
import java.util.UUID;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingWriterFactory;

/**
 * A streaming query's sink, whose small batches pass through no Python worker of Spark's: tasks keep their rows, and the
 * driver hands them to the process beside it that appends ({@link Appender}). All else is Python's, from batch to batch.
 *
 * <p>Python says with its plan of a batch whether the batches of the query are of this kind ({@link SmallBatches}). A plan
 * holds for the batches of a minute ({@link SmallPlan}), as what Python itself has found out does. What distinguishes one
 * batch from the next, its attempt and its timestamp, is made here for each and reaches every task as a property of its job.
 *
 * <p>Nothing of what may go wrong is decided here. A batch that the process has not said to be in the log is committed by
 * Python from the same rows. It may be there already, and Python finds that out, as with any repetition.
 */
final class SmallWrite implements StreamingWrite {

  /** The properties of a job; {@code dlspark/spark/sink/writer.py} in Python. */
  static final String ATTEMPT = "dlspark.sink.attempt";

  static final String STAMP = "dlspark.sink.stamp";

  private final StreamingWrite python;
  private final SmallPlan plan;
  private SmallBatches small;

  SmallWrite(StreamingWrite python, SmallPlan plan) {
    this.python = python;
    this.plan = plan;
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
    SparkContext context = SparkContext.getOrCreate();
    PythonStreamingWriterFactory planned = plan.held();
    if (planned == null) {
      StreamingDataWriterFactory factory = python.createStreamingWriterFactory(info);
      planned = plan.hold(factory);
      if (planned == null) {
        context.setLocalProperty(ATTEMPT, null);
        context.setLocalProperty(STAMP, null);
        return factory;
      }
    }
    small = SmallBatches.of(planned.pickledWriteFunc());
    context.setLocalProperty(ATTEMPT, UUID.randomUUID().toString().replace("-", ""));
    context.setLocalProperty(STAMP, Long.toString(System.currentTimeMillis()));
    return new SmallWriterFactory(planned, small);
  }

  @Override
  public boolean useCommitCoordinator() {
    return python.useCommitCoordinator();
  }

  @Override
  public void commit(long epochId, WriterCommitMessage[] messages) {
    List<SmallRows> rows = SmallRows.all(messages);
    if (small == null || rows == null || !Appender.append(small, epochId, rows)) {
      python.commit(epochId, SmallRows.forPython(messages));
    }
  }

  @Override
  public void abort(long epochId, WriterCommitMessage[] messages) {
    python.abort(epochId, SmallRows.forPython(messages));
  }
}
