package interop;

import static interop.OpenLogs.await;
import static interop.OpenLogs.dlsn;
import static interop.OpenLogs.text;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import org.apache.distributedlog.LogSegmentMetadata;
import org.apache.distributedlog.api.DistributedLogManager;

/** The real DistributedLog core: segments, positions and counts of a log; purging and recovering it. */
final class LogSegments {
    LogSegments(Map<String, Main.Command> commands, OpenLogs logs) {
        commands.put("dl.facts", line -> logs.with(line, log -> facts(log, line)));
        commands.put("dl.segments", line -> logs.with(line, LogSegments::segments));
        commands.put("dl.count", line -> logs.with(line, log ->
            await(log.getLogRecordCountAsync(dlsn(line.get("dlsn").asText())))));
        commands.put("dl.find_txids", line -> logs.with(line, log -> findTxids(log, line)));
        commands.put("dl.purge", line -> logs.with(line, log -> {
            log.purgeLogsOlderThan(line.get("txid").asLong());
            return true;
        }));
        commands.put("dl.recover", line -> logs.with(line, log -> {
            log.recover();
            return true;
        }));
    }

    /** First and last positions, counts and end mark, as the library computes them. */
    private static Object facts(DistributedLogManager log, JsonNode line) throws Exception {
        ObjectNode answer = Main.JSON.createObjectNode();
        answer.put("first_dlsn", text(await(log.getFirstDLSNAsync())));
        answer.put("last_dlsn", text(log.getLastDLSN()));
        answer.put("first_txid", log.getFirstTxId());
        answer.put("last_txid", log.getLastTxId());
        answer.put("count", log.getLogRecordCount());
        answer.put("end_of_stream", log.isEndOfStreamMarked());
        LogReaders.describe(answer.putObject("first"), log.getFirstLogRecord());
        LogReaders.describe(answer.putObject("last"), log.getLastLogRecord());
        if (line.has("txid")) {
            answer.put("at_txid", text(await(log.getDLSNNotLessThanTxId(line.get("txid").asLong()))));
        }
        return answer;
    }

    /** Where each of "txids" is. */
    private static Object findTxids(DistributedLogManager log, JsonNode line) throws Exception {
        ArrayNode answer = Main.JSON.createArrayNode();
        for (JsonNode txid : line.get("txids")) {
            answer.add(text(await(log.getDLSNNotLessThanTxId(txid.asLong()))));
        }
        return answer;
    }

    private static Object segments(DistributedLogManager log) throws Exception {
        ArrayNode answer = Main.JSON.createArrayNode();
        for (LogSegmentMetadata segment : log.getLogSegments()) {
            ObjectNode item = answer.addObject();
            item.put("name", segment.getZNodeName());
            item.put("lssn", segment.getLogSegmentSequenceNumber());
            item.put("ledger", segment.getLogSegmentId());
            item.put("in_progress", segment.isInProgress());
            item.put("first_txid", segment.getFirstTxId());
            item.put("last_txid", segment.getLastTxId());
            item.put("completed_ms", segment.getCompletionTime());
            item.put("count", segment.getRecordCount());
            item.put("last_entry", segment.getLastEntryId());
            item.put("last_slot", segment.getLastSlotId());
            item.put("start_sequence_id", segment.getStartSequenceId());
            item.put("version", segment.getVersion());
            item.put("region", segment.getRegionId());
            item.put("truncation", segment.getTruncationStatus().name());
            item.put("min_entry", segment.getMinActiveEntryId());
            item.put("min_slot", segment.getMinActiveSlotId());
        }
        return answer;
    }
}
