package interop;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;

/** Real bookies, as many as wanted, inside this process. */
final class Bookies {
    private final Map<String, EmbeddedServer> running = new LinkedHashMap<>();

    Bookies(Map<String, Main.Command> commands) {
        commands.put("cluster.init", this::initialise);
        commands.put("bookie.start", this::start);
        commands.put("bookie.stop", this::stop);
    }

    private static ServerConfiguration configuration(JsonNode line) {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://" + line.get("zk").asText() + line.path("root").asText("/ledgers"));
        conf.setZkTimeout(6000);
        return conf;
    }

    /** The tree as Java's own tools initialise it; true if it was initialised now. */
    private synchronized Object initialise(JsonNode line) throws Exception {
        return BookKeeperAdmin.initNewCluster(configuration(line));
    }

    /** Starts one bookie on "port" and "directory", with "settings" by the library's own keys; answers its id. */
    private synchronized Object start(JsonNode line) throws Exception {
        File directory = new File(line.get("directory").asText());
        ServerConfiguration conf = configuration(line);
        conf.setAllowLoopback(true);
        conf.setAdvertisedAddress("127.0.0.1");
        conf.setListeningInterface("lo");
        conf.setBookiePort(line.get("port").asInt());
        conf.setJournalDirName(new File(directory, "journal").getPath());
        conf.setLedgerDirNames(new String[] {new File(directory, "ledgers").getPath()});
        conf.setProperty("journalPreAllocSizeMB", 1);
        conf.setProperty("journalMaxSizeMB", 32);
        conf.setProperty("skipListSizeLimit", 4 << 20);
        conf.setProperty("fileInfoFormatVersionToWrite", 1);  // version 1 keeps explicit LACs
        conf.setProperty("journalFormatVersionToWrite", 6);
        conf.setDiskUsageThreshold(0.99f);
        conf.setDiskUsageWarnThreshold(0.985f);
        conf.setProperty("numAddWorkerThreads", 1);
        conf.setProperty("numReadWorkerThreads", 2);
        conf.setProperty("numHighPriorityWorkerThreads", 2);
        conf.setProperty("serverNumIOThreads", 2);
        conf.setHttpServerEnabled(false);
        line.path("settings").fields().forEachRemaining(
            setting -> conf.setProperty(setting.getKey(), setting.getValue().asText()));
        EmbeddedServer server = EmbeddedServer.builder(new BookieConfiguration(conf)).build();
        server.getLifecycleComponentStack().start();
        BookieId id = server.getBookieService().getServer().getBookieId();
        running.put(id.toString(), server);
        while (!server.getRegistrationManager().isBookieRegistered(id)) {  // happens after start() returns
            Thread.sleep(10);
        }
        return id.toString();
    }

    private synchronized Object stop(JsonNode line) {
        EmbeddedServer server = running.remove(line.get("bookie").asText());
        server.getLifecycleComponentStack().close();
        return true;
    }

    synchronized void stopAll() {
        List<EmbeddedServer> servers = new ArrayList<>(running.values());
        running.clear();
        for (EmbeddedServer server : servers) {
            server.getLifecycleComponentStack().close();
        }
    }
}
