package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * A batch whose partitions say which hosts have their data: Spark then prefers an executor on one of them. The first
 * partition says, too, what the plan has seen of the logs ({@link QuerySnapshot}).
 *
 * <p>Python data sources have no way to say this. The connector's partitions carry both as marked pieces of text, which
 * are found here in their pickled form without unpickling it. A partition without the mark stays as it is.
 *
 * <p>A Spark of one process ({@code local[n]}) has one executor to choose from, and is told of no host. It would wait for
 * ever: where some tasks of a stage prefer its own host (as those behind a shuffle do) and others prefer one that it does
 * not know by that name, it puts these off for {@code spark.locality.wait}, and has no clock that brings them up again.
 */
record LocatedBatch(Batch python) implements Batch {

  /** Begins the hosts, which are separated by commas; see {@code LogPartition} in Python. */
  private static final byte[] HOSTS = mark("dlspark-hosts[");

  /** Begins what the plan has seen, as JSON that has no {@code END} in it. */
  private static final byte[] SEEN = mark("dlspark-seen[");

  private static final char END = ']';

  @Override
  public InputPartition[] planInputPartitions() {
    InputPartition[] partitions = python.planInputPartitions();
    if (SparkContext.getOrCreate().isLocal()) {
      return partitions;
    }
    for (int i = 0; i < partitions.length; i++) {
      if (partitions[i] instanceof PythonInputPartition one) {
        String[] hosts = hosts(one.pickedPartition());
        partitions[i] = hosts.length == 0 ? one : new LocatedPartition(one, hosts);
      }
    }
    return partitions;
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new LocatedReaderFactory(python.createReaderFactory());
  }

  static String[] hosts(byte[] pickled) {
    String text = marked(pickled, HOSTS);
    return text == null || text.isEmpty() ? new String[0] : text.split(",");
  }

  /** What the plan of these partitions has seen, or null: a metadata table's says nothing. */
  static JsonNode seen(InputPartition[] partitions) {
    InputPartition first = partitions.length == 0 ? null : LocatedReaderFactory.inner(partitions[0]);
    String text = first instanceof PythonInputPartition one ? marked(one.pickedPartition(), SEEN) : null;
    return text == null ? null : Requests.read(text);
  }

  static byte[] mark(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  /** The text from behind {@code mark} to before {@code END}, or null. */
  static String marked(byte[] pickled, byte[] mark) {
    int begin = indexOf(pickled, mark);
    if (begin < 0) {
      return null;
    }
    int end = begin;
    while (end < pickled.length && pickled[end] != END) {
      end++;
    }
    return new String(pickled, begin, end - begin, StandardCharsets.UTF_8);
  }

  /** The place behind {@code mark}, or -1. */
  private static int indexOf(byte[] bytes, byte[] mark) {
    for (int i = 0; i + mark.length <= bytes.length; i++) {
      int matching = 0;
      while (matching < mark.length && bytes[i + matching] == mark[matching]) {
        matching++;
      }
      if (matching == mark.length) {
        return i + mark.length;
      }
    }
    return -1;
  }

  /** A partition of the Python connector with the hosts that have its data. */
  record LocatedPartition(InputPartition python, String[] hosts) implements InputPartition {

    @Override
    public String[] preferredLocations() {
      return hosts;
    }
  }

  /** Reads located partitions as what they are to Python. */
  record LocatedReaderFactory(PartitionReaderFactory python) implements PartitionReaderFactory {

    private static InputPartition inner(InputPartition partition) {
      return partition instanceof LocatedPartition located ? located.python() : partition;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
      return python.createReader(inner(partition));
    }

    @Override
    public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
      return python.createColumnarReader(inner(partition));
    }

    @Override
    public boolean supportColumnarReads(InputPartition partition) {
      return python.supportColumnarReads(inner(partition));
    }
  }
}
