package interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordSet;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.LogSegmentMetadata;
import org.apache.distributedlog.acl.AccessControlManager;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.LogReader;
import org.apache.distributedlog.api.LogWriter;
import org.apache.distributedlog.api.MetadataAccessor;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.io.CompressionCodec;
import org.apache.distributedlog.metadata.DLMetadata;

/** The real DistributedLog core: namespaces, log writers and readers. */
final class Logs {
    private static final int WAIT_S = 60;

    /** An open namespace and one open log in it. */
    private static final class Open<T> {
        final DistributedLogManager log;
        final T what;

        Open(DistributedLogManager log, T what) {
            this.log = log;
            this.what = what;
        }
    }

    private final Handles handles = new Handles();

    Logs(Map<String, Main.Command> commands) {
        commands.put("dl.bind", this::bind);
        commands.put("dl.open", this::open);
        commands.put("dl.close", this::close);
        commands.put("dl.create", line -> {
            namespace(line).createLog(line.get("log").asText());
            return true;
        });
        commands.put("dl.delete", line -> {
            namespace(line).deleteLog(line.get("log").asText());
            return true;
        });
        commands.put("dl.exists", line -> namespace(line).logExists(line.get("log").asText()));
        commands.put("dl.rename", line -> {
            await(namespace(line).renameLog(line.get("log").asText(), line.get("name").asText()));
            return true;
        });
        commands.put("dl.allowed", this::allowed);
        commands.put("dl.metadata", this::metadata);
        commands.put("dl.list", this::list);
        commands.put("dl.facts", this::facts);
        commands.put("dl.segments", this::segments);
        commands.put("dl.recover", this::recover);
        commands.put("dl.writer", this::openWriter);
        commands.put("dl.write", this::write);
        commands.put("dl.write_set", this::writeSet);
        commands.put("dl.end_of_stream", this::markEndOfStream);
        commands.put("dl.close_writer", this::closeWriter);
        commands.put("dl.abort_writer", this::abortWriter);
        commands.put("dl.write_sync", this::writeSync);
        commands.put("dl.read", this::read);
        commands.put("dl.read_sync", this::readSync);
        commands.put("dl.reader", this::openReader);
        commands.put("dl.next", this::next);
        commands.put("dl.close_reader", this::closeReader);
        commands.put("dl.locked_reader", this::openLockedReader);
        commands.put("dl.commit_position", this::commitPosition);
        commands.put("dl.positions", this::positions);
    }

    private Object bind(JsonNode line) throws Exception {
        BKDLConfig binding = new BKDLConfig(line.get("zk").asText(), line.path("root").asText("/ledgers"));
        DLMetadata.create(binding).create(URI.create(line.get("uri").asText()));
        return true;
    }

    private Object open(JsonNode line) throws Exception {
        DistributedLogConfiguration conf = new DistributedLogConfiguration();
        conf.setZKSessionTimeoutSeconds(6);
        conf.setLockTimeout(1);
        conf.setEnableReadAhead(true);
        conf.setReadAheadWaitTime(50);
        conf.setOutputBufferSize(64 * 1024);
        conf.setPeriodicFlushFrequencyMilliSeconds(10);
        conf.setBKClientNumberIOThreads(1);
        conf.setNumWorkerThreads(2);
        Iterator<Map.Entry<String, JsonNode>> settings = line.path("settings").fields();
        while (settings.hasNext()) {
            Map.Entry<String, JsonNode> setting = settings.next();
            conf.setProperty(setting.getKey(), setting.getValue().asText());
        }
        Namespace namespace = NamespaceBuilder.newBuilder()
            .conf(conf).uri(URI.create(line.get("uri").asText())).clientId(line.path("client").asText("java"))
            .build();
        return handles.add(namespace);
    }

    private Object close(JsonNode line) {
        handles.remove(line.get("namespace").asInt(), Namespace.class).close();
        return true;
    }

    private Namespace namespace(JsonNode line) {
        return handles.get(line.get("namespace").asInt(), Namespace.class);
    }

    private DistributedLogManager log(JsonNode line) throws Exception {
        return namespace(line).openLog(line.get("log").asText());
    }

    private static <T> T await(CompletableFuture<T> future) throws Exception {
        return future.get(WAIT_S, TimeUnit.SECONDS);
    }

    private Object list(JsonNode line) throws Exception {
        List<String> names = new ArrayList<>();
        namespace(line).getLogs().forEachRemaining(names::add);
        names.sort(null);
        return names;
    }

    /** What the access control of the namespace lets be done with a log. */
    private Object allowed(JsonNode line) throws Exception {
        // The namespace's own: it goes with the namespace.
        AccessControlManager control = namespace(line).createAccessControlManager();
        String log = line.get("log").asText();
        ObjectNode answer = Main.JSON.createObjectNode();
        answer.put("write", control.allowWrite(log));
        answer.put("truncate", control.allowTruncate(log));
        answer.put("delete", control.allowDelete(log));
        answer.put("acquire", control.allowAcquire(log));
        answer.put("release", control.allowRelease(log));
        return answer;
    }

    /** The application's own bytes of a log, as text; with "data" they are replaced first. */
    private Object metadata(JsonNode line) throws Exception {
        MetadataAccessor accessor =
            namespace(line).getNamespaceDriver().getMetadataAccessor(line.get("log").asText());
        try {
            if (line.has("data")) {
                accessor.createOrUpdateMetadata(line.get("data").asText().getBytes(StandardCharsets.UTF_8));
            }
            byte[] data = accessor.getMetadata();
            return data == null ? "" : new String(data, StandardCharsets.UTF_8);
        } finally {
            accessor.close();
        }
    }

    /** First and last positions, counts and end mark, as the library computes them. */
    private Object facts(JsonNode line) throws Exception {
        DistributedLogManager log = log(line);
        try {
            ObjectNode answer = Main.JSON.createObjectNode();
            answer.put("first_dlsn", text(await(log.getFirstDLSNAsync())));
            answer.put("last_dlsn", text(log.getLastDLSN()));
            answer.put("first_txid", log.getFirstTxId());
            answer.put("last_txid", log.getLastTxId());
            answer.put("count", log.getLogRecordCount());
            answer.put("end_of_stream", log.isEndOfStreamMarked());
            if (line.has("txid")) {
                answer.put("at_txid", text(await(log.getDLSNNotLessThanTxId(line.get("txid").asLong()))));
            }
            return answer;
        } finally {
            log.close();
        }
    }

    private Object segments(JsonNode line) throws Exception {
        DistributedLogManager log = log(line);
        try {
            ArrayNode answer = Main.JSON.createArrayNode();
            for (LogSegmentMetadata segment : log.getLogSegments()) {
                ObjectNode item = answer.addObject();
                item.put("lssn", segment.getLogSegmentSequenceNumber());
                item.put("ledger", segment.getLogSegmentId());
                item.put("in_progress", segment.isInProgress());
                item.put("first_txid", segment.getFirstTxId());
                item.put("last_txid", segment.getLastTxId());
                item.put("count", segment.getRecordCount());
                item.put("last_entry", segment.getLastEntryId());
                item.put("last_slot", segment.getLastSlotId());
                item.put("start_sequence_id", segment.getStartSequenceId());
                item.put("version", segment.getVersion());
                item.put("truncated", segment.isTruncated());
            }
            return answer;
        } finally {
            log.close();
        }
    }

    private Object recover(JsonNode line) throws Exception {
        DistributedLogManager log = log(line);
        try {
            log.recover();
            return true;
        } finally {
            log.close();
        }
    }

    private Object openWriter(JsonNode line) throws Exception {
        DistributedLogManager log = log(line);
        try {
            return handles.add(new Open<>(log, await(log.openAsyncLogWriter())));
        } catch (Exception failed) {
            log.close();
            throw failed;
        }
    }

    @SuppressWarnings("unchecked")
    private Open<AsyncLogWriter> writer(JsonNode line) {
        return handles.get(line.get("writer").asInt(), Open.class);
    }

    private static List<LogRecord> records(JsonNode line) {
        List<LogRecord> records = new ArrayList<>();
        long txid = line.path("txid").asLong();
        for (byte[] payload : Payloads.of(line)) {
            records.add(new LogRecord(txid++, payload));
        }
        return records;
    }

    /** Writes records with consecutive txids from "txid"; answers the DLSN of each once all are acknowledged. */
    private Object write(JsonNode line) throws Exception {
        List<CompletableFuture<DLSN>> writes = new ArrayList<>();
        for (LogRecord record : records(line)) {
            writes.add(writer(line).what.write(record));
        }
        ArrayNode answer = Main.JSON.createArrayNode();
        for (CompletableFuture<DLSN> write : writes) {
            answer.add(text(await(write)));
        }
        return answer;
    }

    /** One record set of all payloads under "txid", compressed as "codec" says; answers the DLSN of each member. */
    private Object writeSet(JsonNode line) throws Exception {
        LogRecordSet.Writer set =
            LogRecordSet.newWriter(64 * 1024, CompressionCodec.Type.valueOf(line.path("codec").asText("NONE")));
        List<CompletableFuture<DLSN>> members = new ArrayList<>();
        for (byte[] payload : Payloads.of(line)) {
            CompletableFuture<DLSN> member = new CompletableFuture<>();
            set.writeRecord(ByteBuffer.wrap(payload), member);
            members.add(member);
        }
        LogRecord record = new LogRecord(line.get("txid").asLong(), set.getBuffer());
        record.setRecordSet();
        DLSN first = await(writer(line).what.write(record));
        set.completeTransmit(first.getLogSegmentSequenceNo(), first.getEntryId(), first.getSlotId());
        ArrayNode answer = Main.JSON.createArrayNode();
        for (CompletableFuture<DLSN> member : members) {
            answer.add(text(await(member)));
        }
        return answer;
    }

    private Object markEndOfStream(JsonNode line) throws Exception {
        return await(writer(line).what.markEndOfStream());
    }

    @SuppressWarnings("unchecked")
    private Object closeWriter(JsonNode line) throws Exception {
        Open<AsyncLogWriter> open = handles.remove(line.get("writer").asInt(), Open.class);
        await(open.what.asyncClose());
        open.log.close();
        return true;
    }

    /** Leaves the segment in progress: nothing is flushed, nothing completed. */
    @SuppressWarnings("unchecked")
    private Object abortWriter(JsonNode line) throws Exception {
        Open<AsyncLogWriter> open = handles.remove(line.get("writer").asInt(), Open.class);
        await(open.what.asyncAbort());
        open.log.close();
        return true;
    }

    /** The synchronous writer: opens, writes, flushes, commits, closes (which completes the segment). */
    private Object writeSync(JsonNode line) throws Exception {
        DistributedLogManager log = log(line);
        try {
            LogWriter writer = log.openLogWriter();
            for (LogRecord record : records(line)) {
                writer.write(record);
            }
            long flushed = writer.flush();
            long committed = writer.commit();
            writer.close();
            return List.of(flushed, committed);
        } finally {
            log.close();
        }
    }

    private AsyncLogReader asyncReader(DistributedLogManager log, JsonNode line) throws Exception {
        return line.has("dlsn")
            ? await(log.openAsyncLogReader(dlsn(line.get("dlsn").asText())))
            : await(log.openAsyncLogReader(line.path("from_txid").asLong(0)));
    }

    /** Up to "count" records from "dlsn" or "from_txid"; stops early when nothing comes for "timeout_ms". */
    private Object read(JsonNode line) throws Exception {
        DistributedLogManager log = log(line);
        AsyncLogReader reader = asyncReader(log, line);
        try {
            return records(reader, line);
        } finally {
            await(reader.asyncClose());
            log.close();
        }
    }

    private static ArrayNode records(AsyncLogReader reader, JsonNode line) throws Exception {
        ArrayNode answer = Main.JSON.createArrayNode();
        while (answer.size() < line.get("count").asInt()) {
            CompletableFuture<LogRecordWithDLSN> next = reader.readNext();
            try {
                describe(answer.addObject(), next.get(line.path("timeout_ms").asLong(20_000), TimeUnit.MILLISECONDS));
            } catch (java.util.concurrent.TimeoutException nothing) {
                answer.remove(answer.size() - 1);
                break;
            }
        }
        return answer;
    }

    /** The synchronous reader, until it has nothing more to give. */
    private Object readSync(JsonNode line) throws Exception {
        DistributedLogManager log = log(line);
        try {
            LogReader reader = line.has("dlsn")
                ? log.openLogReader(dlsn(line.get("dlsn").asText()))
                : log.openLogReader(line.path("from_txid").asLong(0));
            ArrayNode answer = Main.JSON.createArrayNode();
            LogRecordWithDLSN record = reader.readNext(false);
            while (record != null && answer.size() < line.get("count").asInt()) {
                describe(answer.addObject(), record);
                record = reader.readNext(false);
            }
            reader.close();
            return answer;
        } finally {
            log.close();
        }
    }

    private Object openReader(JsonNode line) throws Exception {
        DistributedLogManager log = log(line);
        return handles.add(new Open<>(log, asyncReader(log, line)));
    }

    /** A reader under a lock: of a subscriber, from its stored position, or of the log, from "dlsn". */
    private Object openLockedReader(JsonNode line) throws Exception {
        DistributedLogManager log = log(line);
        try {
            return handles.add(new Open<>(log, line.has("subscriber")
                ? await(log.getAsyncLogReaderWithLock(line.get("subscriber").asText()))
                : await(log.getAsyncLogReaderWithLock(dlsn(line.get("dlsn").asText())))));
        } catch (Exception failed) {
            log.close();
            throw failed;
        }
    }

    private Object commitPosition(JsonNode line) throws Exception {
        DistributedLogManager log = log(line);
        try {
            await(log.getSubscriptionsStore().advanceCommitPosition(
                line.get("subscriber").asText(), dlsn(line.get("dlsn").asText())));
            return true;
        } finally {
            log.close();
        }
    }

    /** The stored positions of all subscribers. */
    private Object positions(JsonNode line) throws Exception {
        DistributedLogManager log = log(line);
        try {
            ObjectNode answer = Main.JSON.createObjectNode();
            await(log.getSubscriptionsStore().getLastCommitPositions())
                .forEach((subscriber, position) -> answer.put(subscriber, text(position)));
            return answer;
        } finally {
            log.close();
        }
    }

    @SuppressWarnings("unchecked")
    private Object next(JsonNode line) throws Exception {
        Open<AsyncLogReader> open = handles.get(line.get("reader").asInt(), Open.class);
        return records(open.what, line);
    }

    @SuppressWarnings("unchecked")
    private Object closeReader(JsonNode line) throws Exception {
        Open<AsyncLogReader> open = handles.remove(line.get("reader").asInt(), Open.class);
        await(open.what.asyncClose());
        open.log.close();
        return true;
    }

    private static void describe(ObjectNode item, LogRecordWithDLSN record) {
        item.put("dlsn", text(record.getDlsn()));
        item.put("txid", record.getTransactionId());
        item.put("sequence_id", record.getSequenceId());
        item.put("position", record.getPositionWithinLogSegment());
        item.put("control", record.isControl());
        Payloads.describe(item, record.getPayload());
    }

    private static String text(DLSN dlsn) {
        return dlsn.getLogSegmentSequenceNo() + ":" + dlsn.getEntryId() + ":" + dlsn.getSlotId();
    }

    private static DLSN dlsn(String text) {
        String[] parts = text.split(":");
        return new DLSN(Long.parseLong(parts[0]), Long.parseLong(parts[1]), Long.parseLong(parts[2]));
    }
}
