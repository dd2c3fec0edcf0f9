package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.TableSummary;
import org.apache.spark.sql.connector.catalog.TableWritePrivilege;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The logs of a DistributedLog namespace as tables of a Spark SQL catalog: log {@code a/b/c} is table {@code c} in
 * namespace {@code a.b}.
 *
 * <p>Switched on by {@code spark.sql.catalog.dlog = org.dlspark.sql.DistributedLogCatalog}; {@code
 * spark.sql.catalog.dlog.uri} names the namespace, else {@code spark.distributedlog.uri} does, else the environment.
 * Further keys are options of the connector, defaults for every table.
 *
 * <p>This class knows SQL and no metadata: each call is one question to the Python connector ({@link Requests}), so a
 * log is created, renamed and deleted by the same code as everywhere else. It must never decide what a log is.
 */
public final class DistributedLogCatalog implements StagingTableCatalog, SupportsNamespaces {

  private static final Set<String> WRITERS =
      Set.of("org.apache.spark.sql.classic.DataFrameWriter", "org.apache.spark.sql.classic.DataStreamWriter");

  private String name;
  private Requests requests;

  /** Called once by Spark. Fails on a Spark version that this class was not tested with. */
  @Override
  public void initialize(String catalogName, CaseInsensitiveStringMap options) {
    SparkVersions.check();
    name = catalogName;
    requests = new Requests(catalogName, options.asCaseSensitiveMap());
  }

  @Override
  public String name() {
    return name;
  }

  /** Columns of tables may have defaults. Generated columns and identities are refused by Spark for lack of more. */
  @Override
  public Set<TableCatalogCapability> capabilities() {
    return Set.of(TableCatalogCapability.SUPPORT_COLUMN_DEFAULT_VALUE);
  }

  // ------------------------------------------------------------------ tables

  @Override
  public Identifier[] listTables(String[] namespace) {
    JsonNode found = requests.ask(namespaceRequest("tables", namespace), Errors.ofNamespace(namespace));
    Identifier[] tables = new Identifier[found.size()];
    for (int i = 0; i < tables.length; i++) {
      tables[i] = Identifier.of(namespace, found.get(i).asText());
    }
    return tables;
  }

  /** One question for all, where Spark's own way would load each table. */
  @Override
  public TableSummary[] listTableSummaries(String[] namespace) {
    Identifier[] tables = listTables(namespace);
    TableSummary[] summaries = new TableSummary[tables.length];
    for (int i = 0; i < tables.length; i++) {
      summaries[i] = TableSummary.of(tables[i], TableSummary.MANAGED_TABLE_TYPE);
    }
    return summaries;
  }

  @Override
  public Table loadTable(Identifier ident) {
    return load(ident, Requests.request("load"));
  }

  /** {@code VERSION AS OF 'segment:entry:slot'}: the log up to and with that record. */
  @Override
  public Table loadTable(Identifier ident, String version) {
    return load(ident, Requests.request("load").put("version", version));
  }

  /** {@code TIMESTAMP AS OF}: the log's records up to that time, in microseconds since the epoch. */
  @Override
  public Table loadTable(Identifier ident, long timestamp) {
    return load(ident, Requests.request("load").put("timestamp_us", timestamp));
  }

  /** For a statement that writes. One that does more than append is refused here, where it says so itself. */
  @Override
  public Table loadTable(Identifier ident, Set<TableWritePrivilege> privileges) {
    boolean appends = privileges.stream().allMatch(privilege -> privilege == TableWritePrivilege.INSERT);
    return load(ident, Requests.request(appends ? "load" : "change"));
  }

  private Table load(Identifier ident, ObjectNode request) {
    Requests.putTable(request, ident);
    return new CatalogTable(requests, name, ident, requests.ask(request, Errors.ofTable(ident)));
  }

  @Override
  public Table createTable(Identifier ident, TableInfo info) {
    return new CatalogTable(requests, name, ident, create("create", ident, info, byWriter()));
  }

  @Override
  public StagedTable stageCreate(Identifier ident, TableInfo info) {
    return staged(ident, create("create", ident, info, true));
  }

  /** Refused: a log cannot be emptied, and without this method Spark would delete it first. */
  @Override
  public StagedTable stageReplace(Identifier ident, TableInfo info) {
    return staged(ident, create("replace", ident, info, true));
  }

  /** {@code CREATE OR REPLACE}: creates a log that is not there, refuses to replace one that is. */
  @Override
  public StagedTable stageCreateOrReplace(Identifier ident, TableInfo info) {
    return staged(ident, create("create_or_replace", ident, info, true));
  }

  private StagedTable staged(Identifier ident, JsonNode about) {
    return new StagedLogTable(requests, name, ident, about, () -> abandon(ident, about));
  }

  /** Deletes the log that was created for a query that has failed; refused if others have written to it meanwhile. */
  private void abandon(Identifier ident, JsonNode about) {
    ObjectNode request = Requests.request("abandon");
    Requests.putTable(request, ident);
    request.set("created", about.get("created"));
    requests.ask(request, Errors.ofTable(ident));
  }

  private JsonNode create(String operation, Identifier ident, TableInfo info, boolean asSelect) {
    ObjectNode request = Requests.request(operation);
    Requests.putTable(request, ident);
    request.put("schema", info.schema().json());
    request.put("as_select", asSelect);
    ObjectNode columnDefaults = request.putObject("column_defaults");
    for (Column column : info.columns()) {
      if (column.defaultValue() != null) {
        columnDefaults.set(column.name(), Constants.words(column.defaultValue()));
      }
    }
    request.put("default_provider", byWriter() ? requests.conf("spark.sql.sources.default", "parquet") : "");
    ArrayNode partitioning = request.putArray("partitioning");
    for (Transform transform : info.partitions()) {
      partitioning.add(transform.describe());
    }
    request.put("constraints", info.constraints().length);
    ObjectNode properties = request.putObject("properties");
    info.properties().forEach(properties::put);
    return requests.ask(request, Errors.ofTable(ident));
  }

  /**
   * Whether {@code saveAsTable} or {@code toTable} creates the table: they name the session's default format where their
   * caller named none, and nothing else tells that from {@code USING parquet}. A Spark whose classes have other names is
   * told what to name, and creates nothing.
   */
  private static boolean byWriter() {
    return StackWalker.getInstance()
        .walk(frames -> frames.anyMatch(frame -> WRITERS.contains(outer(frame.getClassName()))));
  }

  private static String outer(String className) {
    int inner = className.indexOf('$');
    return inner < 0 ? className : className.substring(0, inner);
  }

  /** Properties are set and removed; columns are changed by the rules of a log's schema, all of one statement at once. */
  @Override
  public Table alterTable(Identifier ident, TableChange... changes) {
    ObjectNode request = Requests.request("alter");
    Requests.putTable(request, ident);
    ObjectNode set = request.putObject("set");
    ArrayNode removed = request.putArray("remove");
    ArrayNode columns = request.putArray("columns");
    ArrayNode others = request.putArray("others");
    for (TableChange change : changes) {
      if (change instanceof TableChange.SetProperty property) {
        set.put(property.property(), property.value());
      } else if (change instanceof TableChange.RemoveProperty property) {
        removed.add(property.property());
      } else {
        ObjectNode words = ColumnChanges.words(change);
        if (words == null) {
          others.add(change.getClass().getSimpleName());
        } else {
          columns.add(words);
        }
      }
    }
    return new CatalogTable(requests, name, ident, requests.ask(request, Errors.ofTable(ident)));
  }

  /** Deletes the log with its data; false if there is none. Refused while somebody writes it. */
  @Override
  public boolean dropTable(Identifier ident) {
    ObjectNode request = Requests.request("drop");
    Requests.putTable(request, ident);
    return requests.ask(request, Errors.ofTable(ident)).asBoolean();
  }

  /** A log that is dropped keeps nothing: {@code PURGE} adds nothing to it. */
  @Override
  public boolean purgeTable(Identifier ident) {
    return dropTable(ident);
  }

  /** Spark hands on the new name as it was written: one that begins with this catalog's is taken as a name in it. */
  @Override
  public void renameTable(Identifier oldIdent, Identifier newIdent) {
    String[] above = newIdent.namespace();
    boolean qualified = above.length > 0 && above[0].equals(name);
    Identifier target =
        qualified ? Identifier.of(Arrays.copyOfRange(above, 1, above.length), newIdent.name()) : newIdent;
    ObjectNode request = Requests.request("rename");
    Requests.putTable(request, oldIdent);
    Requests.putParts(request.putArray("new_table"), target);
    requests.ask(request, Errors.ofRename(oldIdent, target));
  }

  // ------------------------------------------------------------------ namespaces

  @Override
  public String[][] listNamespaces() {
    return listNamespaces(new String[0]);
  }

  @Override
  public String[][] listNamespaces(String[] namespace) {
    JsonNode found = requests.ask(namespaceRequest("namespaces", namespace), Errors.ofNamespace(namespace));
    String[][] below = new String[found.size()][];
    for (int i = 0; i < below.length; i++) {
      below[i] = Arrays.copyOf(namespace, namespace.length + 1);
      below[i][namespace.length] = found.get(i).asText();
    }
    return below;
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
    JsonNode found = requests.ask(namespaceRequest("namespace", namespace), Errors.ofNamespace(namespace));
    Map<String, String> metadata = new HashMap<>();
    found.properties().forEach(entry -> metadata.put(entry.getKey(), entry.getValue().asText()));
    return metadata;
  }

  /** Refused: a namespace below the root is there as soon as a log is in it, and cannot be empty. */
  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) {
    requests.ask(namespaceRequest("create_namespace", namespace), Errors.ofNamespace(namespace));
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    requests.ask(namespaceRequest("alter_namespace", namespace), Errors.ofNamespace(namespace));
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) {
    return requests.ask(namespaceRequest("drop_namespace", namespace), Errors.ofNamespace(namespace)).asBoolean();
  }

  // ------------------------------------------------------------------ names

  private static ObjectNode namespaceRequest(String operation, String[] namespace) {
    ObjectNode request = Requests.request(operation);
    ArrayNode parts = request.putArray("namespace");
    for (String part : namespace) {
      parts.add(part);
    }
    return request;
  }
}
