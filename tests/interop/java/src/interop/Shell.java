package interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.util.EntryFormatter;
import org.apache.bookkeeper.util.LedgerIdFormatter;
import org.apache.logging.log4j.Level;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.LoggerContext;
import org.apache.logging.log4j.core.appender.AbstractAppender;
import org.apache.logging.log4j.core.config.Configuration;
import org.apache.logging.log4j.core.config.LoggerConfig;
import org.apache.logging.log4j.core.config.Property;

/** The real `bookkeeper shell`, in this process: its exit status and what it told: most through the log, contents on standard output. */
final class Shell {
    /** Whoever speaks for a command. */
    private static final List<String> VOICES =
        List.of("org.apache.bookkeeper.tools", "org.apache.bookkeeper.bookie.BookieShell");

    /** Keeps what is logged: the message, and the values that newer versions attach to it. */
    private static final class Ear extends AbstractAppender {
        final List<String> heard = Collections.synchronizedList(new ArrayList<>());

        Ear() {
            super("shell", null, null, false, Property.EMPTY_ARRAY);
        }

        @Override
        public void append(LogEvent event) {
            StringBuilder text = new StringBuilder(event.getMessage().getFormattedMessage());
            event.getContextData().forEach((key, value) -> text.append(' ').append(key).append('=').append(value));
            heard.add(text.toString());
        }
    }

    Shell(Map<String, Main.Command> commands) {
        commands.put("shell", this::run);
    }

    /** Runs "arguments" on the cluster of "zk" and "root"; one command at a time, since the log is shared. */
    private synchronized Object run(JsonNode line) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://" + line.get("zk").asText() + line.path("root").asText("/ledgers"));
        conf.setZkTimeout(6000);
        line.path("settings").fields().forEachRemaining(
            setting -> conf.setProperty(setting.getKey(), setting.getValue().asText()));
        List<String> arguments = new ArrayList<>();
        line.get("arguments").forEach(argument -> arguments.add(argument.asText()));
        Ear ear = new Ear();
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream before = System.out;
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        listen(ear);
        int status;
        try {
            BookieShell shell =  // made now: some commands keep the standard output that they find
                new BookieShell(LedgerIdFormatter.LONG_LEDGERID_FORMATTER, EntryFormatter.STRING_FORMATTER);
            shell.setConf(conf);
            status = shell.run(arguments.toArray(new String[0]));
        } finally {
            stopListening(ear);
            System.setOut(before);
        }
        ObjectNode answer = Main.JSON.createObjectNode();
        answer.put("status", status);
        ArrayNode told = answer.putArray("told");
        ear.heard.forEach(told::add);
        printed.toString(StandardCharsets.UTF_8).lines().forEach(told::add);
        return answer;
    }

    private static void listen(Ear ear) {
        ear.start();
        LoggerContext context = (LoggerContext) LogManager.getContext(false);
        Configuration configuration = context.getConfiguration();
        for (String voice : VOICES) {
            LoggerConfig logger = new LoggerConfig(voice, Level.INFO, false);
            logger.addAppender(ear, Level.INFO, null);
            configuration.addLogger(voice, logger);
        }
        context.updateLoggers();
    }

    private static void stopListening(Ear ear) {
        LoggerContext context = (LoggerContext) LogManager.getContext(false);
        VOICES.forEach(context.getConfiguration()::removeLogger);
        context.updateLoggers();
        ear.stop();
    }
}
