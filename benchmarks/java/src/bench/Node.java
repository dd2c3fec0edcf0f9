package bench;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.util.Map;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;

/** A bookie as upstream configures it, save for what "settings" say. */
final class Node {
    private EmbeddedServer server;

    Node(Map<String, Main.Command> commands) {
        commands.put("cluster.init", line -> BookKeeperAdmin.initNewCluster(configuration(line)));
        commands.put("bookie.start", this::start);
    }

    private static ServerConfiguration configuration(JsonNode line) {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://" + line.get("zk").asText() + line.get("root").asText());
        line.path("settings").fields().forEachRemaining(
            setting -> conf.setProperty(setting.getKey(), setting.getValue().asText()));
        return conf;
    }

    private Object start(JsonNode line) throws Exception {
        ServerConfiguration conf = configuration(line);
        File directory = new File(line.get("directory").asText());
        conf.setAllowLoopback(true);
        conf.setAdvertisedAddress("127.0.0.1");
        conf.setListeningInterface("lo");
        conf.setBookiePort(line.get("port").asInt());
        conf.setJournalDirName(new File(directory, "journal").getPath());
        conf.setLedgerDirNames(new String[] {new File(directory, "ledgers").getPath()});
        conf.setHttpServerEnabled(false);
        server = EmbeddedServer.builder(new BookieConfiguration(conf)).build();
        server.getLifecycleComponentStack().start();
        BookieId id = server.getBookieService().getServer().getBookieId();
        while (!server.getRegistrationManager().isBookieRegistered(id)) {  // happens after start() returns
            Thread.sleep(10);
        }
        return id.toString();
    }

    void stop() {
        if (server != null) {
            server.getLifecycleComponentStack().close();
        }
    }
}
