package interop;

import static interop.OpenLogs.await;
import static interop.OpenLogs.dlsn;
import static interop.OpenLogs.text;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import interop.OpenLogs.Open;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.distributedlog.AppendOnlyStreamReader;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.LogReader;

/** The real DistributedLog core: readers, and the positions of subscribers. */
final class LogReaders {
    private final OpenLogs logs;

    LogReaders(Map<String, Main.Command> commands, OpenLogs logs) {
        this.logs = logs;
        commands.put("dl.read", line -> logs.with(line, log -> read(log, line)));
        commands.put("dl.read_sync", line -> logs.with(line, log -> readSync(log, line)));
        commands.put("dl.append_read", line -> logs.with(line, log -> appendRead(log, line)));
        commands.put("dl.reader", line -> {
            DistributedLogManager log = logs.log(line);
            return logs.handles.add(new Open<>(log, asyncReader(log, line)));
        });
        commands.put("dl.locked_reader", this::openLockedReader);
        commands.put("dl.next", this::next);
        commands.put("dl.close_reader", this::closeReader);
        commands.put("dl.commit_position", line -> logs.with(line, log -> {
            await(log.getSubscriptionsStore().advanceCommitPosition(
                line.get("subscriber").asText(), dlsn(line.get("dlsn").asText())));
            return true;
        }));
        commands.put("dl.positions", line -> logs.with(line, LogReaders::positions));
    }

    private static AsyncLogReader asyncReader(DistributedLogManager log, JsonNode line) throws Exception {
        return line.has("dlsn")
            ? await(log.openAsyncLogReader(dlsn(line.get("dlsn").asText())))
            : await(log.openAsyncLogReader(line.path("from_txid").asLong(0)));
    }

    /** Up to "count" records from "dlsn" or "from_txid"; stops early when nothing comes for "timeout_ms". */
    private static Object read(DistributedLogManager log, JsonNode line) throws Exception {
        AsyncLogReader reader = asyncReader(log, line);
        try {
            return records(reader, line);
        } finally {
            await(reader.asyncClose());
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
    private static Object readSync(DistributedLogManager log, JsonNode line) throws Exception {
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
    }

    /** The log as a stream of bytes: "size" of them from byte "position" on. */
    private static Object appendRead(DistributedLogManager log, JsonNode line) throws Exception {
        try (AppendOnlyStreamReader stream = log.getAppendOnlyStreamReader()) {
            long position = line.path("position").asLong(0);
            if (position > 0) {
                stream.skipTo(position);
            }
            ObjectNode answer = Main.JSON.createObjectNode();
            Payloads.describe(answer, stream.readNBytes(line.get("size").asInt()));
            return answer;
        }
    }

    /** A reader under a lock: of a subscriber, from its stored position, or of the log, from "dlsn". */
    private Object openLockedReader(JsonNode line) throws Exception {
        DistributedLogManager log = logs.log(line);
        try {
            return logs.handles.add(new Open<>(log, line.has("subscriber")
                ? await(log.getAsyncLogReaderWithLock(line.get("subscriber").asText()))
                : await(log.getAsyncLogReaderWithLock(dlsn(line.get("dlsn").asText())))));
        } catch (Exception failed) {
            log.close();
            throw failed;
        }
    }

    /** The stored positions of all subscribers. */
    private static Object positions(DistributedLogManager log) throws Exception {
        ObjectNode answer = Main.JSON.createObjectNode();
        await(log.getSubscriptionsStore().getLastCommitPositions())
            .forEach((subscriber, position) -> answer.put(subscriber, text(position)));
        return answer;
    }

    @SuppressWarnings("unchecked")
    private Object next(JsonNode line) throws Exception {
        Open<AsyncLogReader> open = logs.handles.get(line.get("reader").asInt(), Open.class);
        return records(open.what, line);
    }

    @SuppressWarnings("unchecked")
    private Object closeReader(JsonNode line) throws Exception {
        Open<AsyncLogReader> open = logs.handles.remove(line.get("reader").asInt(), Open.class);
        await(open.what.asyncClose());
        open.log.close();
        return true;
    }

    static void describe(ObjectNode item, LogRecordWithDLSN record) {
        item.put("dlsn", text(record.getDlsn()));
        item.put("txid", record.getTransactionId());
        item.put("sequence_id", record.getSequenceId());
        item.put("position", record.getPositionWithinLogSegment());
        item.put("control", record.isControl());
        item.put("set", record.isRecordSet());
        Payloads.describe(item, record.getPayload());
    }
}
