package bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * The real BookKeeper under load: one process is a storage node ("bookie") or a client ("load"), as its first command says.
 *
 * <p>A command a line on standard input, its answer a line on standard output, both JSON, one after the other. The end of
 * standard input ends the process.
 */
public final class Main {
    /** A command: takes its line, gives what is answered under "ok". */
    interface Command {
        Object run(JsonNode line) throws Exception;
    }

    static final ObjectMapper JSON = new ObjectMapper();

    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        Map<String, Command> commands = new HashMap<>();
        Node node = new Node(commands);
        Load load = new Load(commands);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String text = lines.readLine(); text != null; text = lines.readLine()) {
            JsonNode line = JSON.readTree(text);
            ObjectNode answer = JSON.createObjectNode();
            answer.set("id", line.get("id"));
            try {
                answer.set("ok", JSON.valueToTree(commands.get(line.get("do").asText()).run(line)));
            } catch (Throwable thrown) {
                java.io.StringWriter trace = new java.io.StringWriter();
                thrown.printStackTrace(new java.io.PrintWriter(trace));
                answer.put("error", thrown.getClass().getSimpleName());
                answer.put("message", String.valueOf(thrown.getMessage()));
                answer.put("trace", trace.toString());
            }
            answers.println(answer);
        }
        load.close();
        node.stop();
        Runtime.getRuntime().halt(0);
    }
}
