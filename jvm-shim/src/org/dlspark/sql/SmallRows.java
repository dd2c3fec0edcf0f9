package org.dlspark.sql;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.Channels;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import org.apache.spark.sql.util.ArrowUtils;

/**
 * The rows of one task, or of all tasks of a batch in their order: what {@code InlineRows} is in Python. They carry the
 * batch's timestamp, so that nothing but the order of tasks has to be kept.
 */
final class SmallRows implements WriterCommitMessage, Serializable {

  // No record: tasks' results go by the serializer that the session names, and Kryo cannot read those.
  private static final long serialVersionUID = 1L;

  private final String query;
  private final long batch;
  private final String attempt;
  private final long stamp;
  private final String log;
  private final int rowBytes;
  private final int partition;
  private final byte[][] values;

  SmallRows(
      String query, long batch, String attempt, long stamp, String log, int rowBytes, int partition, byte[][] values) {
    this.query = query;
    this.batch = batch;
    this.attempt = attempt;
    this.stamp = stamp;
    this.log = log;
    this.rowBytes = rowBytes;
    this.partition = partition;
    this.values = values;
  }

  /** What unpickles as the message of a task: a call of this function with the text and the rows. */
  private static final String FUNCTION = "dlspark.spark.sink.small_batches\nmessage_of\n";

  /** All messages of a batch, where all are of this kind; null: some are Python's, or of a task that failed. */
  static List<SmallRows> all(WriterCommitMessage[] messages) {
    List<SmallRows> found = new ArrayList<>();
    for (WriterCommitMessage message : messages) {
      if (!(message instanceof SmallRows rows)) {
        return null;
      }
      found.add(rows);
    }
    return found;
  }

  /** The rows of all tasks in one; null where there are none. */
  static SmallRows joined(List<SmallRows> parts) {
    List<SmallRows> ordered =
        parts.stream()
            .filter(part -> part.values.length > 0)
            .sorted(Comparator.comparingInt((SmallRows part) -> part.partition))
            .toList();
    if (ordered.size() < 2) {
      return ordered.isEmpty() ? null : ordered.get(0);
    }
    byte[][] values = ordered.stream().flatMap(part -> List.of(part.values).stream()).toArray(byte[][]::new);
    SmallRows first = ordered.get(0);
    return new SmallRows(
        first.query,
        first.batch,
        first.attempt,
        first.stamp,
        first.log,
        first.rowBytes,
        first.partition,
        values);
  }

  long batch() {
    return batch;
  }

  /** The bytes that they take of an entry. */
  long size() {
    long size = (long) rowBytes * values.length;
    for (byte[] value : values) {
      size += value.length;
    }
    return size;
  }

  /** The words for them in a message: of whose batch they are, and which part of it. */
  ObjectNode words() {
    ObjectNode words = Requests.JSON.createObjectNode();
    words.putArray("job").add(query).add(batch).add(attempt);
    ArrayNode part = words.putArray("part");
    part.add(log).add(partition).add(stamp).add(stamp).add(values.length).add(size()).add(stamp);
    return words;
  }

  /** The values as an Arrow stream with one column. */
  byte[] stream() {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (BufferAllocator allocator = ArrowUtils.rootAllocator().newChildAllocator("dlspark rows", 0, Long.MAX_VALUE);
        VarBinaryVector column = new VarBinaryVector("value", allocator)) {
      for (int i = 0; i < values.length; i++) {
        column.setSafe(i, values[i]);
      }
      column.setValueCount(values.length);
      try (VectorSchemaRoot root = VectorSchemaRoot.of(column);
          ArrowStreamWriter writer = new ArrowStreamWriter(root, null, Channels.newChannel(bytes))) {
        writer.start();
        writer.writeBatch();
        writer.end();
      }
    } catch (IOException error) {
      throw new IllegalStateException("rows that cannot be written", error);
    }
    return bytes.toByteArray();
  }

  /** The messages as Python takes them. */
  static WriterCommitMessage[] forPython(WriterCommitMessage[] messages) {
    WriterCommitMessage[] made = new WriterCommitMessage[messages.length];
    for (int i = 0; i < made.length; i++) {
      made[i] = messages[i] instanceof SmallRows rows ? new PythonWriterCommitMessage(rows.pickled()) : messages[i];
    }
    return made;
  }

  /** Protocol 3 of pickle: the function, two byte strings, a tuple of both, the call. */
  private byte[] pickled() {
    byte[] function = ("\u0080\u0003c" + FUNCTION).getBytes(StandardCharsets.ISO_8859_1);
    byte[] words = Requests.write(words()).getBytes(StandardCharsets.UTF_8);
    byte[] rows = values.length == 0 ? new byte[0] : stream();
    ByteBuffer made = ByteBuffer.allocate(function.length + words.length + rows.length + 13).order(ByteOrder.LITTLE_ENDIAN);
    made.put(function);
    made.put((byte) 'B').putInt(words.length).put(words);
    made.put((byte) 'B').putInt(rows.length).put(rows);
    made.put((byte) 0x86).put((byte) 'R').put((byte) '.');
    return made.array();
  }
}
