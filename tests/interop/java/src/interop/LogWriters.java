package interop;

import static interop.OpenLogs.await;
import static interop.OpenLogs.dlsn;
import static interop.OpenLogs.text;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import interop.OpenLogs.Open;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.apache.distributedlog.AppendOnlyStreamWriter;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordSet;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.LogWriter;
import org.apache.distributedlog.io.CompressionCodec;

/** The real DistributedLog core: writers. */
final class LogWriters {
    private final OpenLogs logs;

    LogWriters(Map<String, Main.Command> commands, OpenLogs logs) {
        this.logs = logs;
        commands.put("dl.writer", this::openWriter);
        commands.put("dl.write", this::write);
        commands.put("dl.write_set", this::writeSet);
        commands.put("dl.end_of_stream", line -> await(writer(line).markEndOfStream()));
        commands.put("dl.truncate", line -> await(writer(line).truncate(dlsn(line.get("dlsn").asText()))));
        commands.put("dl.close_writer", line -> {
            Open<AsyncLogWriter> open = removed(line);
            await(open.what.asyncClose());
            open.log.close();
            return true;
        });
        // Leaves the segment in progress: nothing is flushed, nothing completed.
        commands.put("dl.abort_writer", line -> {
            Open<AsyncLogWriter> open = removed(line);
            await(open.what.asyncAbort());
            open.log.close();
            return true;
        });
        commands.put("dl.write_sync", line -> logs.with(line, log -> writeSync(log, line)));
        commands.put("dl.append", line -> logs.with(line, log -> append(log, line)));
    }

    private Object openWriter(JsonNode line) throws Exception {
        DistributedLogManager log = logs.log(line);
        try {
            return logs.handles.add(new Open<>(log, await(log.openAsyncLogWriter())));
        } catch (Exception failed) {
            log.close();
            throw failed;
        }
    }

    @SuppressWarnings("unchecked")
    private AsyncLogWriter writer(JsonNode line) {
        Open<AsyncLogWriter> open = logs.handles.get(line.get("writer").asInt(), Open.class);
        return open.what;
    }

    @SuppressWarnings("unchecked")
    private Open<AsyncLogWriter> removed(JsonNode line) {
        return logs.handles.remove(line.get("writer").asInt(), Open.class);
    }

    /** The payloads of a line, under its "txids" or consecutive ones from "txid"; control records if it says so. */
    private static List<LogRecord> records(JsonNode line) {
        List<LogRecord> records = new ArrayList<>();
        for (byte[] payload : Payloads.of(line)) {
            int index = records.size();
            long txid = line.has("txids") ? line.get("txids").get(index).asLong() : line.path("txid").asLong() + index;
            LogRecord record = new LogRecord(txid, payload);
            if (line.path("control").asBoolean()) {
                record.setControl();
            }
            records.add(record);
        }
        return records;
    }

    /** Writes records; answers the DLSN of each once all are acknowledged. */
    private Object write(JsonNode line) throws Exception {
        List<CompletableFuture<DLSN>> writes = new ArrayList<>();
        for (LogRecord record : records(line)) {
            writes.add(writer(line).write(record));
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
        DLSN first = await(writer(line).write(record));
        set.completeTransmit(first.getLogSegmentSequenceNo(), first.getEntryId(), first.getSlotId());
        ArrayNode answer = Main.JSON.createArrayNode();
        for (CompletableFuture<DLSN> member : members) {
            answer.add(text(await(member)));
        }
        return answer;
    }

    /** The synchronous writer: opens, writes, flushes, commits, closes (which completes the segment). */
    private static Object writeSync(DistributedLogManager log, JsonNode line) throws Exception {
        LogWriter writer = log.openLogWriter();
        for (LogRecord record : records(line)) {
            writer.write(record);
        }
        long flushed = writer.flush();
        long committed = writer.commit();
        writer.close();
        return List.of(flushed, committed);
    }

    /** Appends payloads to the log as a stream of bytes; answers its length. */
    private static Object append(DistributedLogManager log, JsonNode line) throws Exception {
        AppendOnlyStreamWriter stream = log.getAppendOnlyStreamWriter();
        for (byte[] payload : Payloads.of(line)) {
            await(stream.write(payload));
        }
        stream.force(false);
        long length = stream.position();
        stream.close();
        return length;
    }
}
