package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;

/**
 * What Python says of a query whose small batches may be appended without it: the log, how many bytes of rows a batch may
 * have and what each row takes beside its value, and how the process that appends is found.
 *
 * <p>It is a marked piece of text in the pickled plan, found without unpickling it, as hosts are in partitions ({@link
 * LocatedBatch}); {@code dlspark/spark/sink/small_batches.py} in Python.
 */
record SmallBatches(
    String log, int bytes, int least, int rowBytes, long idleMs, String home, int user, String socket, String secret)
    implements Serializable {

  private static final byte[] MARK = LocatedBatch.mark("dlspark-small[");

  /** What a pickled plan says; null: its batches are Python's. */
  static SmallBatches of(byte[] pickled) {
    String text = LocatedBatch.marked(pickled, MARK);
    if (text == null) {
      return null;
    }
    JsonNode said = Requests.read(text);
    return new SmallBatches(
        said.get("log").asText(),
        said.get("bytes").asInt(),
        said.get("least").asInt(),
        said.get("row").asInt(),
        said.get("idle").asLong(),
        said.get("home").asText(),
        said.get("user").asInt(),
        said.get("socket").asText(),
        said.get("secret").asText());
  }

  /** The bytes of rows that a task may keep: as {@code CommitWay.share} in Python. */
  int share(int partition) {
    return Math.max(least, bytes / (1 + partition));
  }
}
