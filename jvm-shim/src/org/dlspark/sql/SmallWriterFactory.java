package org.dlspark.sql;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingWriterFactory;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;

/** Makes the writers of tasks, which keep their rows while they are few, and else have Python write all of them. */
record SmallWriterFactory(PythonStreamingWriterFactory python, SmallBatches small) implements StreamingDataWriterFactory {

  private static final CustomTaskMetric[] NONE = {};

  @Override
  public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
    return new Writer(partition, task, epoch);
  }

  private final class Writer implements DataWriter<InternalRow> {

    private final int partition;
    private final long task;
    private final long epoch;
    private final boolean binary;
    private final List<byte[]> values = new ArrayList<>();
    private DataWriter<InternalRow> others;

    Writer(int partition, long task, long epoch) {
      DataType type = python.inputSchema().apply(0).dataType();
      this.partition = partition;
      this.task = task;
      this.epoch = epoch;
      this.binary = type instanceof BinaryType;
    }

    /** Spark hands all rows over at once; Python's writer takes them in no other way. */
    @Override
    public void writeAll(Iterator<InternalRow> rows) throws IOException {
      List<InternalRow> kept = new ArrayList<>();
      long size = 0;
      while (rows.hasNext()) {
        InternalRow row = rows.next();
        kept.add(row.copy());
        if (!row.isNullAt(0)) {
          byte[] value = binary ? row.getBinary(0).clone() : row.getUTF8String(0).getBytes();
          values.add(value);
          size += value.length + small.rowBytes();
        }
        // A null is refused by Python, in its words.
        if (size > small.share(partition) || values.size() < kept.size()) {
          others = python.createWriter(partition, task, epoch);
          others.writeAll(both(kept.iterator(), rows));
          return;
        }
      }
    }

    @Override
    public void write(InternalRow row) {
      throw new UnsupportedOperationException("rows are written all at once");
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
      if (others != null) {
        return others.commit();
      }
      TaskContext context = TaskContext.get();
      return new SmallRows(
          context.getLocalProperty("sql.streaming.queryId"),
          epoch,
          context.getLocalProperty(SmallWrite.ATTEMPT),
          Long.parseLong(context.getLocalProperty(SmallWrite.STAMP)),
          small.log(),
          small.rowBytes(),
          partition,
          values.toArray(new byte[0][]));
    }

    @Override
    public void abort() throws IOException {
      if (others != null) {
        others.abort();
      }
    }

    @Override
    public void close() throws IOException {
      if (others != null) {
        others.close();
      }
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return others == null ? NONE : others.currentMetricsValues();
    }
  }

  private static Iterator<InternalRow> both(Iterator<InternalRow> first, Iterator<InternalRow> rest) {
    return new Iterator<>() {
      @Override
      public boolean hasNext() {
        return first.hasNext() || rest.hasNext();
      }

      @Override
      public InternalRow next() {
        return first.hasNext() ? first.next() : rest.next();
      }
    };
  }
}
