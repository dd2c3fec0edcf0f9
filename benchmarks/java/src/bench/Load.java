package bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.conf.ClientConfiguration;

/** Loads of the real client, the same as those of our client: see java_pairs.py. */
final class Load {
    /** A window is as long as it takes to count so many. */
    private static final int LEAST = 20;

    private final Map<String, BookKeeper> clients = new HashMap<>();

    Load(Map<String, Main.Command> commands) {
        commands.put("load.latencies", this::latencies);
        commands.put("load.write", this::write);
        commands.put("load.fill", this::fill);
        commands.put("load.read", this::read);
        commands.put("load.delete", this::delete);
    }

    private BookKeeper client(JsonNode line) throws Exception {
        String uri = "zk+hierarchical://" + line.get("zk").asText() + line.get("root").asText();
        if (!clients.containsKey(uri)) {
            clients.put(uri, new BookKeeper(unthrottled(uri)));
        }
        return clients.get(uri);
    }

    /** Upstream's defaults, but without its limit of 5,000 requests a second for a handle: ours has none. */
    private static ClientConfiguration unthrottled(String uri) {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(uri);
        configuration.setThrottleValue(0);
        return configuration;
    }

    void close() throws Exception {
        for (BookKeeper client : clients.values()) {
            client.close();
        }
    }

    private LedgerHandle create(JsonNode line) throws Exception {
        return client(line).createLedger(line.get("ensemble").asInt(), line.get("ensemble").asInt(),
            line.get("ack_quorum").asInt(), BookKeeper.DigestType.CRC32, new byte[0]);
    }

    private static byte[] payload(JsonNode line) {
        byte[] payload = new byte[line.get("size").asInt()];
        new Random(7).nextBytes(payload);
        return payload;
    }

    /** Adds one after the other for "seconds"; answers microseconds, sorted, of those after the warm-up. */
    private Object latencies(JsonNode line) throws Exception {
        LedgerHandle ledger = create(line);
        byte[] payload = payload(line);
        double seconds = line.get("seconds").asDouble();
        long begin = System.nanoTime();
        long counted = begin + (long) (seconds * line.get("warm_up").asDouble() * 1e9);
        long end = begin + (long) (seconds * 1e9);
        double[] found = new double[1 << 20];
        int count = 0;
        for (long now = begin; (now < end || count < LEAST) && count < found.length; now = System.nanoTime()) {
            ledger.addEntry(payload);
            if (now > counted) {
                found[count++] = (System.nanoTime() - now) / 1e3;
            }
        }
        finish(line, ledger);
        double[] answer = Arrays.copyOf(found, count);
        Arrays.sort(answer);
        return answer;
    }

    /** Keeps "depth" adds under way for "seconds" or until "entries" were sent; answers counted entries and seconds. */
    private Object write(JsonNode line) throws Exception {
        LedgerHandle ledger = create(line);
        byte[] payload = payload(line);
        double seconds = line.get("seconds").asDouble();
        int depth = line.get("depth").asInt();
        long most = line.get("entries").asLong();
        long warm = (long) (most * line.get("warm_up").asDouble());
        Semaphore room = new Semaphore(depth);
        AtomicInteger failed = new AtomicInteger();
        AtomicLong acknowledged = new AtomicLong();
        AtomicLong countedFrom = new AtomicLong();
        AtomicLong countedBefore = new AtomicLong();
        long begin = System.nanoTime();
        long warmUntil = begin + (long) (seconds * line.get("warm_up").asDouble() * 1e9);
        long end = begin + (long) (seconds * 1e9);
        for (long sent = 0; sent < most && failed.get() == 0; sent++) {
            if (System.nanoTime() >= end && acknowledged.get() - countedBefore.get() >= LEAST && countedFrom.get() > 0) {
                break;
            }
            room.acquire();
            ledger.asyncAddEntry(payload, (rc, handle, entry, context) -> {
                if (rc != BKException.Code.OK) {
                    failed.compareAndSet(0, rc);
                }
                long done = acknowledged.incrementAndGet();
                long now = System.nanoTime();
                if (countedFrom.get() == 0 && (now >= warmUntil || done >= warm)) {
                    countedBefore.set(done);
                    countedFrom.set(now);
                }
                room.release();
            }, null);
        }
        long last = System.nanoTime();
        long total = acknowledged.get();
        room.acquire(depth);
        if (failed.get() != 0) {
            throw BKException.create(failed.get());
        }
        finish(line, ledger);
        ObjectNode answer = Main.JSON.createObjectNode();
        answer.put("entries", total - countedBefore.get());
        answer.put("seconds", (last - countedFrom.get()) / 1e9);
        return answer;
    }

    private void finish(JsonNode line, LedgerHandle ledger) throws Exception {
        ledger.close();
        client(line).deleteLedger(ledger.getId());
    }

    /** A closed ledger of "entries" entries; answers its id. */
    private Object fill(JsonNode line) throws Exception {
        LedgerHandle ledger = create(line);
        byte[] payload = payload(line);
        Semaphore room = new Semaphore(16);
        for (long sent = 0; sent < line.get("entries").asLong(); sent++) {
            room.acquire();
            ledger.asyncAddEntry(payload, (rc, handle, entry, context) -> room.release(), null);
        }
        room.acquire(16);
        ledger.close();
        return ledger.getId();
    }

    /** Reads a ledger from end to end, over and over, once uncounted; answers bytes and seconds. */
    private Object read(JsonNode line) throws Exception {
        LedgerHandle ledger = client(line).openLedgerNoRecovery(
            line.get("ledger").asLong(), BookKeeper.DigestType.CRC32, new byte[0]);
        int batch = line.get("batch").asInt();
        once(ledger, batch);
        long bytes = 0;
        long begin = System.nanoTime();
        long end = begin + (long) (line.get("seconds").asDouble() * 1e9);
        while (System.nanoTime() < end) {
            bytes += once(ledger, batch);
        }
        ObjectNode answer = Main.JSON.createObjectNode();
        answer.put("seconds", (System.nanoTime() - begin) / 1e9);
        answer.put("bytes", bytes);
        ledger.close();
        return answer;
    }

    /** In order, with two batches of entries asked for ahead. */
    private static long once(LedgerHandle ledger, int batch) throws Exception {
        long bytes = 0;
        long last = ledger.getLastAddConfirmed();
        ArrayDeque<CompletableFuture<LedgerEntries>> ahead = new ArrayDeque<>();
        long next = 0;
        while (next <= last || !ahead.isEmpty()) {
            while (next <= last && ahead.size() < 2) {
                long to = Math.min(next + batch - 1, last);
                ahead.add(ledger.readAsync(next, to).toCompletableFuture());
                next = to + 1;
            }
            try (LedgerEntries entries = ahead.remove().get()) {
                for (LedgerEntry entry : entries) {
                    bytes += entry.getEntryBuffer().readableBytes();
                }
            }
        }
        return bytes;
    }

    private Object delete(JsonNode line) throws Exception {
        client(line).deleteLedger(line.get("ledger").asLong());
        return true;
    }
}
