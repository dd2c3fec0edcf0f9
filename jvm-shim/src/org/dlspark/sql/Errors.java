package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.NonEmptyNamespaceException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.errors.QueryCompilationErrors;

/**
 * What Python refused, as the exceptions that Spark knows: an unknown table becomes {@code TABLE_OR_VIEW_NOT_FOUND}, and
 * so on. What has no name of its own in Spark is a {@code PYTHON_DATA_SOURCE_ERROR}, as it is for
 * {@code format("distributedlog")}, with the connector's own words.
 *
 * <p>Spark's analysis exceptions are checked ones to Java, and most methods of a catalog do not declare them, though
 * Spark's own catalogs (in Scala) throw them everywhere: {@link #thrown} passes them by the compiler.
 */
final class Errors {

  private static final Identifier NOBODY = Identifier.of(new String[0], "");

  private final Identifier table;
  private final Identifier target;
  private final String[] namespace;

  private Errors(Identifier table, Identifier target, String[] namespace) {
    this.table = table;
    this.target = target;
    this.namespace = namespace;
  }

  static Errors ofTable(Identifier table) {
    return new Errors(table, table, table.namespace());
  }

  static Errors ofRename(Identifier table, Identifier target) {
    return new Errors(table, target, table.namespace());
  }

  /** Of what options describe, and no name. */
  static Errors ofFormat() {
    return ofNamespace(new String[0]);
  }

  static Errors ofNamespace(String[] namespace) {
    return new Errors(NOBODY, NOBODY, namespace);
  }

  /** The exception for an answer's {@code error}, to be thrown. */
  RuntimeException of(JsonNode error, String operation, String catalog) {
    switch (error.get("kind").asText()) {
      case "no_such_table":
        return thrown(new NoSuchTableException(table));
      case "no_such_namespace":
        return thrown(new NoSuchNamespaceException(namespace));
      case "table_exists":
        return thrown(new TableAlreadyExistsException(target));
      case "namespace_exists":
        return thrown(new NamespaceAlreadyExistsException(namespace));
      case "namespace_not_empty":
        return thrown(new NonEmptyNamespaceException(namespace));
      default:
        return failed(operation, catalog, error.get("text").asText());
    }
  }

  /** The exception for Spark's Python that has no connector: Spark itself says that it found none, and no more. */
  RuntimeException ofMissingConnector(String operation, String catalog) {
    return failed(
        operation,
        catalog,
        "The Python that runs Spark's data sources has no dlspark; nothing was done. Install dlspark for it, or let the"
            + " environment variable PYSPARK_PYTHON name a Python that has it before Spark starts; with Spark Connect,"
            + " before the server starts");
  }

  private RuntimeException failed(String operation, String catalog, String text) {
    String below = table == NOBODY ? String.join(".", namespace) : table.toString();
    String subject = below.isEmpty() ? catalog : catalog + "." + below;
    String action = words(operation) + " `" + subject + "` in";
    return thrown(QueryCompilationErrors.pythonDataSourceError(action, Requests.FORMAT, text));
  }

  /** What Spark puts behind "Failed to". */
  private static String words(String operation) {
    return switch (operation) {
      case "tables", "namespaces" -> "list " + operation + " of";
      case "namespace" -> "load namespace";
      case "filters", "statistics" -> "ask for " + operation + " of";
      default -> operation.replace('_', ' ');
    };
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> RuntimeException thrown(Throwable error) throws E {
    throw (E) error;
  }
}
