package org.dlspark.sql;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.SparkThrowable;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Questions to the Python connector, and its tables: the one place that touches a class of Spark that is not public
 * ({@code PythonDataSourceV2}).
 *
 * <p>A question travels as an option of the data source, as JSON. Spark asks a data source for its schema in a Python
 * worker on the driver; the answer is the metadata of that schema's only column. So no job runs, and no process is
 * started beside those that Spark keeps for Python data sources anyway.
 *
 * <p>The other side of this class is {@code dlspark/spark/catalog/requests.py}, which says what can be asked.
 */
final class Requests {

  /** The name of the data source. */
  static final String FORMAT = "distributedlog";

  /** Option that holds a question; column metadata that holds its answer. */
  private static final String REQUEST = "dlspark.catalog.request";

  private static final String ANSWER = "answer";

  /** Spark's name for a Python without the connector. */
  private static final String NO_CONNECTOR = "DATA_SOURCE_NOT_EXIST";

  private static final String URI = "uri";
  private static final String URI_CONF = "spark.distributedlog.uri";

  static final ObjectMapper JSON = new ObjectMapper();

  private final String catalog;
  private final Map<String, String> options;

  /** {@code options} are those of {@code spark.sql.catalog.<catalog>.}, without that prefix. */
  Requests(String catalog, Map<String, String> options) {
    this.catalog = catalog;
    this.options = Map.copyOf(options);
  }

  /** Of reads and writes by {@code format("distributedlog")}, which their own options describe. */
  static Requests ofFormat() {
    return new Requests(FORMAT, Map.of());
  }

  /** A question of this kind, to be filled in. */
  static ObjectNode request(String operation) {
    return JSON.createObjectNode().put("operation", operation);
  }

  /** Adds the table that a question is about. */
  static void putTable(ObjectNode request, Identifier ident) {
    putParts(request.putArray("table"), ident);
  }

  static void putParts(ArrayNode parts, Identifier ident) {
    for (String part : ident.namespace()) {
      parts.add(part);
    }
    parts.add(ident.name());
  }

  /** Asks, and waits for the answer. What Python refuses is thrown as {@code errors} says. */
  JsonNode ask(ObjectNode request, Errors errors) {
    request.put("catalog", catalog);
    ObjectNode defaults = request.putObject("defaults");
    options.forEach(
        (key, value) -> {
          if (!key.equalsIgnoreCase(URI)) {
            defaults.put(key, value);
          }
        });
    Map<String, String> sent = new HashMap<>();
    sent.put(REQUEST, write(request));
    String uri = uri();
    if (uri != null) {
      sent.put(URI, uri);
    }
    String operation = request.get("operation").asText();
    StructType schema;
    try {
      schema = source().inferSchema(new CaseInsensitiveStringMap(sent));
    } catch (Exception error) { // Spark's are checked ones that its Scala does not declare
      if (error instanceof SparkThrowable known && NO_CONNECTOR.equals(known.getCondition())) {
        throw errors.ofMissingConnector(operation, catalog);
      }
      throw error;
    }
    JsonNode answer = read(schema.apply(0).metadata().getString(ANSWER));
    if (answer.has("error")) {
      throw errors.of(answer.get("error"), operation, catalog);
    }
    return answer.get("result");
  }

  /** The Python connector's own table with these columns and options. */
  Table pythonTable(StructType schema, Map<String, String> tableOptions) {
    return source().getTable(schema, new Transform[0], tableOptions);
  }

  /** The session's value of a configuration key. */
  String conf(String key, String otherwise) {
    scala.Option<String> found = SparkSession.active().conf().getOption(key);
    return found.isDefined() ? found.get() : otherwise;
  }

  /** The catalog's namespace, or null: then Python looks where else it may be named. */
  private String uri() {
    for (Map.Entry<String, String> option : options.entrySet()) {
      if (option.getKey().equalsIgnoreCase(URI)) {
        return option.getValue();
      }
    }
    return conf(URI_CONF, null);
  }

  /** A new one each time: it remembers the first options it was asked with. */
  private static PythonDataSourceV2 source() {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(FORMAT);
    return source;
  }

  static String write(JsonNode node) {
    try {
      return JSON.writeValueAsString(node);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException("JSON that cannot be written", error);
    }
  }

  static JsonNode read(String text) {
    try {
      return JSON.readTree(text);
    } catch (JsonProcessingException error) {
      throw new IllegalStateException("the Python connector's answer is no JSON: " + text, error);
    }
  }
}
