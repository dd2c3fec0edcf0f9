package interop;

import static interop.OpenLogs.await;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.acl.AccessControlManager;
import org.apache.distributedlog.api.MetadataAccessor;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.metadata.DLMetadata;

/** The real DistributedLog core: namespaces, and the logs in them as wholes. */
final class Namespaces {
    private final OpenLogs logs;

    Namespaces(Map<String, Main.Command> commands, OpenLogs logs) {
        this.logs = logs;
        commands.put("dl.bind", this::bind);
        commands.put("dl.open", this::open);
        commands.put("dl.close", line -> {
            logs.handles.remove(line.get("namespace").asInt(), Namespace.class).close();
            return true;
        });
        commands.put("dl.create", line -> {
            logs.namespace(line).createLog(line.get("log").asText());
            return true;
        });
        commands.put("dl.delete", line -> {
            logs.namespace(line).deleteLog(line.get("log").asText());
            return true;
        });
        commands.put("dl.exists", line -> logs.namespace(line).logExists(line.get("log").asText()));
        commands.put("dl.rename", line -> {
            await(logs.namespace(line).renameLog(line.get("log").asText(), line.get("name").asText()));
            return true;
        });
        commands.put("dl.allowed", this::allowed);
        commands.put("dl.metadata", this::metadata);
        commands.put("dl.list", this::list);
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
            .regionId(line.path("region").asInt(0))
            .build();
        return logs.handles.add(namespace);
    }

    private Object list(JsonNode line) throws Exception {
        List<String> names = new ArrayList<>();
        logs.namespace(line).getLogs().forEachRemaining(names::add);
        names.sort(null);
        return names;
    }

    /** What the access control of the namespace lets be done with a log. */
    private Object allowed(JsonNode line) throws Exception {
        // The namespace's own: it goes with the namespace.
        AccessControlManager control = logs.namespace(line).createAccessControlManager();
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
            logs.namespace(line).getNamespaceDriver().getMetadataAccessor(line.get("log").asText());
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
}
