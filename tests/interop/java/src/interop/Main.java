package interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.RegionProbe;
import org.apache.distributedlog.exceptions.DLException;
import org.apache.distributedlog.exceptions.OwnershipAcquireFailedException;

/**
 * One process of the real Java software, driven from a test: a command a line on standard input, an answer a line on
 * standard output, both JSON.
 *
 * <p>A command is {@code {"id": 7, "do": "ledger.write", ...}}, its answer {@code {"id": 7, "ok": ...}} or
 * {@code {"id": 7, "error": "LedgerFenced", "code": -101, "message": "..."}}. Commands run side by side, so a read may
 * wait at the tail of a ledger that a later command writes. The end of standard input ends the process: it can not
 * outlive the test that started it.
 */
public final class Main {
    /** A command: takes its line, gives what is answered under "ok". */
    interface Command {
        Object run(JsonNode arguments) throws Exception;
    }

    static final ObjectMapper JSON = new ObjectMapper();

    private final Map<String, Command> commands = new HashMap<>();
    private final PrintStream answers;

    private Main(PrintStream answers) {
        this.answers = answers;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Main main = new Main(answers);
        Bookies bookies = new Bookies(main.commands);
        new Ledgers(main.commands);
        OpenLogs logs = new OpenLogs();
        new Namespaces(main.commands, logs);
        new LogWriters(main.commands, logs);
        new LogReaders(main.commands, logs);
        new LogSegments(main.commands, logs);
        new Recovery(main.commands);
        new Shell(main.commands);
        main.commands.put("regions.play", RegionProbe::playAll);
        main.commands.put("ping", line -> System.getProperty("java.version"));
        main.serve();
        bookies.stopAll();
        Runtime.getRuntime().halt(0);
    }

    private void serve() throws Exception {
        ExecutorService workers = Executors.newCachedThreadPool();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode command = JSON.readTree(line);
            workers.execute(() -> answer(command));
        }
    }

    private void answer(JsonNode command) {
        ObjectNode answer = JSON.createObjectNode();
        answer.set("id", command.get("id"));
        try {
            Command known = commands.get(command.get("do").asText());
            if (known == null) {
                throw new IllegalArgumentException("no such command: " + command.get("do"));
            }
            answer.set("ok", JSON.valueToTree(known.run(command)));
        } catch (Throwable thrown) {
            describe(answer, cause(thrown));
        }
        synchronized (answers) {
            answers.println(answer);
        }
    }

    static Throwable cause(Throwable thrown) {
        boolean wrapper = thrown instanceof ExecutionException || thrown instanceof CompletionException;
        return wrapper && thrown.getCause() != null ? cause(thrown.getCause()) : thrown;
    }

    /** The class name and the library's own code: tests compare these, never the wording. */
    static ObjectNode describe(ObjectNode answer, Throwable thrown) {
        answer.put("error", thrown.getClass().getSimpleName());
        answer.put("message", String.valueOf(thrown.getMessage()));
        if (thrown instanceof OwnershipAcquireFailedException) {
            answer.put("owner", ((OwnershipAcquireFailedException) thrown).getCurrentOwner());
        }
        if (thrown instanceof BKException) {
            answer.put("code", ((BKException) thrown).getCode());
        } else if (thrown instanceof DLException) {
            answer.put("code", ((DLException) thrown).getCode());
        } else {
            java.io.StringWriter trace = new java.io.StringWriter();
            thrown.printStackTrace(new java.io.PrintWriter(trace));
            answer.put("trace", trace.toString());
        }
        return answer;
    }
}
