package interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.namespace.Namespace;

/** What commands on logs share: the namespaces, writers and readers that stay open, and DLSNs as text. */
final class OpenLogs {
    private static final int WAIT_S = 60;

    /** One open log and what is open on it. */
    static final class Open<T> {
        final DistributedLogManager log;
        final T what;

        Open(DistributedLogManager log, T what) {
            this.log = log;
            this.what = what;
        }
    }

    /** A command on a log that is open for its length. */
    interface OnLog {
        Object run(DistributedLogManager log) throws Exception;
    }

    final Handles handles = new Handles();

    Namespace namespace(JsonNode line) {
        return handles.get(line.get("namespace").asInt(), Namespace.class);
    }

    DistributedLogManager log(JsonNode line) throws Exception {
        return namespace(line).openLog(line.get("log").asText());
    }

    Object with(JsonNode line, OnLog command) throws Exception {
        DistributedLogManager log = log(line);
        try {
            return command.run(log);
        } finally {
            log.close();
        }
    }

    static <T> T await(CompletableFuture<T> future) throws Exception {
        return future.get(WAIT_S, TimeUnit.SECONDS);
    }

    static String text(DLSN dlsn) {
        return dlsn.getLogSegmentSequenceNo() + ":" + dlsn.getEntryId() + ":" + dlsn.getSlotId();
    }

    static DLSN dlsn(String text) {
        String[] parts = text.split(":");
        return new DLSN(Long.parseLong(parts[0]), Long.parseLong(parts[1]), Long.parseLong(parts[2]));
    }
}
