package interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;

/** The real BookKeeper client: ledgers written, read, followed, recovered, deleted. */
final class Ledgers {
    /** Adds that were sent; each ends with its entry id or an error. */
    private static final class Written {
        final LedgerHandle handle;
        final List<CompletableFuture<Long>> adds = new ArrayList<>();

        Written(LedgerHandle handle) {
            this.handle = handle;
        }
    }

    private final Map<String, BookKeeper> clients = new ConcurrentHashMap<>();
    private final Handles handles = new Handles();

    Ledgers(Map<String, Main.Command> commands) {
        commands.put("ledger.create", this::create);
        commands.put("ledger.create_deferred", this::createDeferred);
        commands.put("ledger.write", this::write);
        commands.put("ledger.write_deferred", this::writeDeferred);
        commands.put("ledger.adds", this::adds);
        commands.put("ledger.close", this::close);
        commands.put("ledger.open", this::open);
        commands.put("ledger.read", this::read);
        commands.put("ledger.batch_read", this::batchRead);
        commands.put("ledger.lac", this::lastConfirmed);
        commands.put("ledger.poll", this::poll);
        commands.put("ledger.metadata", this::metadata);
        commands.put("ledger.delete", this::delete);
        commands.put("ledger.ids", this::ids);
        commands.put("ledger.info", this::bookieInfo);
        commands.put("ledger.stored", this::stored);
        commands.put("ledger.reach", this::reach);
    }

    /** One client for each cluster and set of settings; settings are the library's own keys. */
    private BookKeeper client(JsonNode line) {
        String key = line.get("zk").asText() + line.path("root").asText("/ledgers") + line.path("settings");
        return clients.computeIfAbsent(key, missing -> connect(line));
    }

    private static BookKeeper connect(JsonNode line) {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://" + line.get("zk").asText() + line.path("root").asText("/ledgers"));
        conf.setZkTimeout(6000);
        conf.setAddEntryTimeout(5);
        conf.setReadEntryTimeout(5);
        Iterator<Map.Entry<String, JsonNode>> settings = line.path("settings").fields();
        while (settings.hasNext()) {
            Map.Entry<String, JsonNode> setting = settings.next();
            conf.setProperty(setting.getKey(), setting.getValue().asText());
        }
        try {
            return new BookKeeper(conf);
        } catch (Exception failed) {
            throw new IllegalStateException("no client for " + conf.getMetadataServiceUriUnchecked(), failed);
        }
    }

    private static byte[] password(JsonNode line) {
        return line.path("password").asText("").getBytes(StandardCharsets.UTF_8);
    }

    private static BookKeeper.DigestType digest(JsonNode line) {
        return BookKeeper.DigestType.valueOf(line.path("digest").asText("CRC32"));
    }

    private static Map<String, byte[]> custom(JsonNode line) {
        Map<String, byte[]> custom = new HashMap<>();
        line.path("custom").fields().forEachRemaining(
            entry -> custom.put(entry.getKey(), entry.getValue().asText().getBytes(StandardCharsets.UTF_8)));
        return custom;
    }

    private ObjectNode opened(int number, LedgerHandle handle) {
        ObjectNode answer = Main.JSON.createObjectNode();
        answer.put("handle", number);
        answer.put("ledger", handle.getId());
        answer.put("lac", handle.getLastAddConfirmed());
        answer.put("length", handle.getLength());
        answer.put("closed", handle.isClosed());
        return answer;
    }

    private Object create(JsonNode line) throws Exception {
        LedgerHandle handle = client(line).createLedger(
            line.path("ensemble").asInt(3), line.path("write_quorum").asInt(3), line.path("ack_quorum").asInt(2),
            digest(line), password(line), custom(line));
        return opened(handles.add(new Written(handle)), handle);
    }

    private Object createDeferred(JsonNode line) throws Exception {
        WriteHandle handle = client(line).newCreateLedgerOp()
            .withEnsembleSize(3).withWriteQuorumSize(3).withAckQuorumSize(2)
            .withPassword(password(line)).withWriteFlags(WriteFlag.DEFERRED_SYNC).execute().get();
        ObjectNode answer = Main.JSON.createObjectNode();
        answer.put("handle", handles.add(handle));
        answer.put("ledger", handle.getId());
        return answer;
    }

    /** Entries acknowledged before their sync; LAC moves only with force(). Answers the LAC before and after it. */
    private Object writeDeferred(JsonNode line) throws Exception {
        WriteHandle handle = handles.get(line.get("handle").asInt(), WriteHandle.class);
        for (byte[] payload : Payloads.of(line)) {
            handle.append(payload);
        }
        ObjectNode answer = Main.JSON.createObjectNode();
        answer.put("before", handle.getLastAddConfirmed());
        handle.force().get();
        answer.put("after", handle.getLastAddConfirmed());
        handle.close();
        return answer;
    }

    /** Sends the adds; waits for all unless "wait" is false (then ask with ledger.adds). */
    private Object write(JsonNode line) throws Exception {
        Written written = handles.get(line.get("handle").asInt(), Written.class);
        for (byte[] payload : Payloads.of(line)) {
            CompletableFuture<Long> add = new CompletableFuture<>();
            written.handle.asyncAddEntry(payload, (rc, handle, entry, context) -> {
                if (rc == BKException.Code.OK) {
                    add.complete(entry);
                } else {
                    add.completeExceptionally(BKException.create(rc));
                }
            }, null);
            written.adds.add(add);
        }
        return line.path("wait").asBoolean(true) ? adds(line) : true;
    }

    /** How all adds of a handle ended: the ids that were acknowledged, in order of the adds, and the error codes. */
    private Object adds(JsonNode line) throws Exception {
        Written written = handles.get(line.get("handle").asInt(), Written.class);
        ArrayNode acknowledged = Main.JSON.createArrayNode();
        ArrayNode failed = Main.JSON.createArrayNode();
        for (CompletableFuture<Long> add : written.adds) {
            try {
                acknowledged.add(add.get(line.path("timeout").asInt(60), TimeUnit.SECONDS));
            } catch (java.util.concurrent.ExecutionException error) {
                failed.add(((BKException) error.getCause()).getCode());
            }
        }
        ObjectNode answer = Main.JSON.createObjectNode();
        answer.set("acknowledged", acknowledged);
        answer.set("failed", failed);
        answer.put("lac", written.handle.getLastAddConfirmed());
        return answer;
    }

    private Object close(JsonNode line) throws Exception {
        Object object = handles.remove(line.get("handle").asInt(), Object.class);
        LedgerHandle handle = object instanceof Written ? ((Written) object).handle : (LedgerHandle) object;
        handle.close();
        ObjectNode answer = Main.JSON.createObjectNode();
        answer.put("lac", handle.getLastAddConfirmed());
        answer.put("length", handle.getLength());
        return answer;
    }

    private Object open(JsonNode line) throws Exception {
        long ledger = line.get("ledger").asLong();
        LedgerHandle handle = line.get("recover").asBoolean()
            ? client(line).openLedger(ledger, digest(line), password(line))
            : client(line).openLedgerNoRecovery(ledger, digest(line), password(line));
        return opened(handles.add(handle), handle);
    }

    private Object read(JsonNode line) throws Exception {
        LedgerHandle handle = handles.get(line.get("handle").asInt(), LedgerHandle.class);
        long first = line.path("first").asLong(0);
        long last = line.path("last").asLong(handle.getLastAddConfirmed());
        ArrayNode answer = Main.JSON.createArrayNode();
        if (last < first) {
            return answer;
        }
        Enumeration<LedgerEntry> entries = line.path("unconfirmed").asBoolean(false)
            ? handle.readUnconfirmedEntries(first, last) : handle.readEntries(first, last);
        while (entries.hasMoreElements()) {
            LedgerEntry entry = entries.nextElement();
            ObjectNode item = answer.addObject();
            item.put("entry", entry.getEntryId());
            item.put("length", entry.getLength());
            Payloads.describe(item, entry.getEntry());
        }
        return answer;
    }

    /** What one batch request brings: at most "count" entries of "bytes" together, from "first" on. */
    private Object batchRead(JsonNode line) throws Exception {
        LedgerHandle handle = handles.get(line.get("handle").asInt(), LedgerHandle.class);
        ArrayNode answer = Main.JSON.createArrayNode();
        Enumeration<LedgerEntry> entries = handle.batchReadEntries(
            line.path("first").asLong(0), line.get("count").asInt(), line.path("bytes").asLong(0));
        while (entries.hasMoreElements()) {
            LedgerEntry entry = entries.nextElement();
            ObjectNode item = answer.addObject();
            item.put("entry", entry.getEntryId());
            item.put("length", entry.getLength());
            Payloads.describe(item, entry.getEntry());
        }
        return answer;
    }

    private Object lastConfirmed(JsonNode line) throws Exception {
        LedgerHandle handle = handles.get(line.get("handle").asInt(), LedgerHandle.class);
        return line.path("explicit").asBoolean(false)
            ? handle.readExplicitLastConfirmed() : handle.readLastConfirmed();
    }

    /** Long poll for entry "entry": the answer comes when it is readable, or without it after "timeout_ms". */
    private Object poll(JsonNode line) throws Exception {
        LedgerHandle handle = handles.get(line.get("handle").asInt(), LedgerHandle.class);
        try (LastConfirmedAndEntry found = handle.readLastAddConfirmedAndEntryAsync(
                line.get("entry").asLong(), line.get("timeout_ms").asLong(), false).get(60, TimeUnit.SECONDS)) {
            ObjectNode answer = Main.JSON.createObjectNode();
            answer.put("lac", found.getLastAddConfirmed());
            if (found.hasEntry()) {
                answer.put("entry", found.getEntry().getEntryId());
                Payloads.describe(answer, found.getEntry().getEntryBytes());
            }
            return answer;
        }
    }

    private Object metadata(JsonNode line) throws Exception {
        LedgerMetadata metadata = client(line).getLedgerManager()
            .readLedgerMetadata(line.get("ledger").asLong()).get(30, TimeUnit.SECONDS).getValue();
        ObjectNode answer = Main.JSON.createObjectNode();
        answer.put("state", metadata.getState().toString());
        answer.put("last_entry", metadata.isClosed() ? metadata.getLastEntryId() : -1);
        answer.put("length", metadata.isClosed() ? metadata.getLength() : 0);
        answer.put("ensemble", metadata.getEnsembleSize());
        answer.put("write_quorum", metadata.getWriteQuorumSize());
        answer.put("ack_quorum", metadata.getAckQuorumSize());
        answer.put("digest", metadata.hasPassword() ? metadata.getDigestType().toString() : null);
        answer.put("version", metadata.getMetadataFormatVersion());
        ObjectNode ensembles = answer.putObject("ensembles");
        metadata.getAllEnsembles().forEach((first, bookies) -> {
            ArrayNode ids = ensembles.putArray(Long.toString(first));
            bookies.forEach(bookie -> ids.add(bookie.toString()));
        });
        ObjectNode custom = answer.putObject("custom");
        metadata.getCustomMetadata().forEach(
            (key, value) -> custom.put(key, new String(value, StandardCharsets.UTF_8)));
        return answer;
    }

    private Object delete(JsonNode line) throws Exception {
        client(line).deleteLedger(line.get("ledger").asLong());
        return true;
    }

    private Object ids(JsonNode line) throws Exception {
        List<Long> ids = new ArrayList<>();
        new BookKeeperAdmin(client(line), new ClientConfiguration()).listLedgers().forEach(ids::add);
        return ids;
    }

    /** Free and total bytes of each bookie, as the bookies tell. */
    private Object bookieInfo(JsonNode line) throws Exception {
        ObjectNode answer = Main.JSON.createObjectNode();
        client(line).getBookieInfo().forEach((bookie, info) -> {
            ArrayNode sizes = answer.putArray(bookie.toString());
            sizes.add(info.getFreeDiskSpace()).add(info.getTotalDiskSpace());
        });
        return answer;
    }

    /**
     * Waits until each client that there is of a cluster writes to all of its "nodes"; answers how many clients.
     *
     * <p>A client learns by a watch that a bookie is back. Before that it has forgotten the bookie's address: whatever
     * it sends there fails at once, and with no other bookie left the ledger ends with "not enough bookies".
     */
    private Object reach(JsonNode line) throws Exception {
        String cluster = line.get("zk").asText() + line.path("root").asText("/ledgers");
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(line.path("timeout").asInt(45));
        int reached = 0;
        for (Map.Entry<String, BookKeeper> client : clients.entrySet()) {
            if (!client.getKey().startsWith(cluster)) {
                continue;
            }
            while (true) {
                try {
                    writeToAll(client.getValue(), line.get("nodes").asInt());
                    break;
                } catch (BKException notYet) {
                    if (System.nanoTime() > deadline) {
                        throw notYet;
                    }
                    Thread.sleep(20);
                }
            }
            reached++;
        }
        return reached;
    }

    private static void writeToAll(BookKeeper client, int nodes) throws Exception {
        LedgerHandle handle = client.createLedger(nodes, nodes, nodes, BookKeeper.DigestType.CRC32, new byte[0]);
        handle.addEntry(new byte[1]);
        handle.close();
        client.deleteLedger(handle.getId());
    }

    /** Which of the entries 0..last of a ledger one bookie says it stores. */
    private Object stored(JsonNode line) throws Exception {
        BookKeeperAdmin admin = new BookKeeperAdmin(client(line), new ClientConfiguration());
        AvailabilityOfEntriesOfLedger availability = admin.asyncGetListOfEntriesOfLedger(
            BookieId.parse(line.get("bookie").asText()), line.get("ledger").asLong()).get(30, TimeUnit.SECONDS);
        List<Long> entries = new ArrayList<>();
        for (long entry = 0; entry <= line.get("last").asLong(); entry++) {
            if (availability.isEntryAvailable(entry)) {
                entries.add(entry);
            }
        }
        return entries;
    }
}
