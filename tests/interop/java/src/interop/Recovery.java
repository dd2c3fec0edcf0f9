package interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.replication.AutoRecoveryMain;

/** The real auto-recovery: an auditor that may be elected, and a replication worker. */
final class Recovery {
    private final Handles handles = new Handles();

    Recovery(Map<String, Main.Command> commands) {
        commands.put("autorecovery.start", this::start);
        commands.put("autorecovery.stop", line -> {
            handles.remove(line.get("handle").asInt(), AutoRecoveryMain.class).shutdown();
            return true;
        });
    }

    /** Starts it under the name 127.0.0.1:"port", with "settings" by the library's own keys; nothing listens there. */
    private Object start(JsonNode line) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://" + line.get("zk").asText() + line.get("root").asText());
        conf.setZkTimeout(6000);
        conf.setAllowLoopback(true);
        conf.setAdvertisedAddress("127.0.0.1");
        conf.setBookiePort(line.get("port").asInt());
        conf.setRwRereplicateBackoffMs(200);
        conf.setOpenLedgerRereplicationGracePeriod("1000");
        line.path("settings").fields().forEachRemaining(
            setting -> conf.setProperty(setting.getKey(), setting.getValue().asText()));
        AutoRecoveryMain recovery = new AutoRecoveryMain(conf);
        recovery.start();
        return handles.add(recovery);
    }
}
