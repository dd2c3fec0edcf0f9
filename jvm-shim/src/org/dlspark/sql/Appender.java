package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.EOFException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;

/**
 * The process beside the driver that appends batches, asked from here as Python's commits ask it: one request, one answer;
 * {@code dlspark/spark/sink/append/clients.py} has the words of both.
 */
final class Appender {

  private static final long PATIENCE_MS = 10_000;
  private static final int MAX_ANSWER_BYTES = 64 * 1024;
  private static final int OTHERS = 077;

  private Appender() {}

  /**
   * Appends a batch, unless its log has it. False: the process runs not, refuses it, or does not answer soon. It may be in
   * the log all the same.
   */
  static boolean append(SmallBatches small, long epoch, List<SmallRows> parts) {
    SmallRows rows = SmallRows.joined(parts);
    if (rows == null || rows.batch() != epoch || rows.size() > small.bytes()) {
      return false;
    }
    if (!isPrivate(Path.of(small.home()), small.user())) {
      return false;
    }
    long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000;
    try (SocketChannel channel = SocketChannel.open(StandardProtocolFamily.UNIX);
        Selector selector = Selector.open()) {
      // Nothing of it waits for longer: whoever listens may have been stopped.
      channel.configureBlocking(false);
      if (!channel.connect(UnixDomainSocketAddress.of(small.socket()))) {
        throw new IOException("the process takes no connection at once");
      }
      SelectionKey key = channel.register(selector, SelectionKey.OP_WRITE);
      ObjectNode head = rows.words();
      head.put("secret", Files.readString(Path.of(small.secret()))).put("idle", small.idleMs()).putNull("session");
      send(channel, selector, deadline, Requests.write(head).getBytes(StandardCharsets.UTF_8), rows.stream());
      key.interestOps(SelectionKey.OP_READ);
      JsonNode answer = Requests.read(answer(channel, selector, deadline));
      return answer.hasNonNull("outcome");
    } catch (ClosedByInterruptException stopped) {
      throw new UncheckedIOException(stopped); // as such Spark knows the end of a query that it stops
    } catch (IOException | IllegalStateException error) {
      return false; // Python asks again, and says what is wrong
    }
  }

  /**
   * Whether this is a directory of this user, closed to all others: where it is not, what listens there is another's. Looked
   * at for each batch, as {@code folders.py} does, for what lies among temporary files may be removed and made anew.
   */
  private static boolean isPrivate(Path home, int user) {
    try {
      Map<String, Object> found = Files.readAttributes(home, "unix:uid,mode,isDirectory", LinkOption.NOFOLLOW_LINKS);
      int mode = (Integer) found.get("mode");
      return Boolean.TRUE.equals(found.get("isDirectory")) && found.get("uid").equals(user) && (mode & OTHERS) == 0;
    } catch (IOException | UnsupportedOperationException error) {
      return false; // it is gone, or this is a system that does not say it
    }
  }

  private static void send(SocketChannel channel, Selector selector, long deadline, byte[] head, byte[] body)
      throws IOException {
    ByteBuffer message = ByteBuffer.allocate(8 + head.length + body.length);
    message.putInt(head.length).putInt(body.length).put(head).put(body).flip();
    while (message.hasRemaining()) {
      if (channel.write(message) == 0) {
        await(selector, deadline);
      }
    }
  }

  private static String answer(SocketChannel channel, Selector selector, long deadline) throws IOException {
    ByteBuffer lengths = read(channel, selector, 8, deadline);
    int head = lengths.getInt();
    int body = lengths.getInt();
    if (head < 0 || body < 0 || head > MAX_ANSWER_BYTES || body > MAX_ANSWER_BYTES) {
      throw new IOException("an answer of " + head + " and " + body + " bytes");
    }
    byte[] text = read(channel, selector, head + body, deadline).array();
    return new String(text, 0, head, StandardCharsets.UTF_8);
  }

  private static ByteBuffer read(SocketChannel channel, Selector selector, int count, long deadline) throws IOException {
    ByteBuffer found = ByteBuffer.allocate(count);
    while (found.hasRemaining()) {
      int more = channel.read(found);
      if (more < 0) {
        throw new EOFException("the process ended before it answered");
      }
      if (more == 0) {
        await(selector, deadline);
      }
    }
    return found.flip();
  }

  /** Waits until the channel is ready. Throws once the time is over, or Spark ends the query. */
  private static void await(Selector selector, long deadline) throws IOException {
    long left = (deadline - System.nanoTime()) / 1_000_000;
    if (left <= 0 || Thread.currentThread().isInterrupted()) {
      throw Thread.interrupted() ? new ClosedByInterruptException() : new IOException("no answer in time");
    }
    selector.select(left);
    selector.selectedKeys().clear();
  }
}
