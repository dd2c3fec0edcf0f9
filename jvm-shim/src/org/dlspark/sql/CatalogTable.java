package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * One log as a table of the catalog, or one of the namespace's metadata tables.
 *
 * <p>What Python has to know again about the table travels unread from the answer to {@code load} into the options of
 * each read and write ({@code handle}): its log, its properties, its end where an older version was asked for.
 *
 * <p>Spark looks for cached rows by comparing tables. Two are the same if Python would read the same from them: the same
 * log ({@code created}: one that was deleted and made again is another) with the same handle.
 */
class CatalogTable extends LogTable {

  /** Option that carries {@code handle}. */
  private static final String HANDLE = "dlspark.catalog.table";

  private static final Set<TableCapability> READ = Set.of(TableCapability.BATCH_READ);

  // TRUNCATE is there so that INSERT OVERWRITE is refused by the connector, which says why, and not by Spark.
  private static final Set<TableCapability> READ_AND_WRITE =
      Set.of(
          TableCapability.BATCH_READ,
          TableCapability.MICRO_BATCH_READ,
          TableCapability.BATCH_WRITE,
          TableCapability.STREAMING_WRITE,
          TableCapability.TRUNCATE,
          TableCapability.ACCEPT_ANY_SCHEMA);

  private final String name;
  private final JsonNode about;
  private final Column[] columns;
  private final StructType schema;

  /** {@code about} is Python's answer to {@code load}. */
  CatalogTable(Requests requests, String catalog, Identifier ident, JsonNode about) {
    super(requests, Errors.ofTable(ident));
    this.name = catalog + "." + ident;
    this.about = about;
    JsonNode found = about.get("columns");
    columns = new Column[found.size()];
    StructType fields = new StructType();
    for (int i = 0; i < columns.length; i++) {
      JsonNode column = found.get(i);
      DataType type = DataType.fromDDL(column.get("type").asText());
      columns[i] = Column.create(column.get("name").asText(), type, true, column.get("comment").asText(), null);
      fields = fields.add(columns[i].name(), type);
    }
    schema = fields;
  }

  @Override
  public String name() {
    return name;
  }

  /** What tells this log from another one that had the name before; null for a metadata table. */
  @Override
  public String id() {
    return about.hasNonNull("created") ? about.get("created").asText() : null;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof CatalogTable table
        && name.equals(table.name)
        && about.get("created").equals(table.about.get("created"))
        && about.get("handle").equals(table.about.get("handle"));
  }

  @Override
  public int hashCode() {
    return about.get("handle").hashCode();
  }

  /** What a streaming query's progress calls its sink and source. */
  @Override
  public String toString() {
    return "DistributedLog[" + name + "]";
  }

  @Override
  public Column[] columns() {
    return columns;
  }

  @Override
  public Map<String, String> properties() {
    Map<String, String> properties = new TreeMap<>();
    about.get("properties").properties().forEach(one -> properties.put(one.getKey(), one.getValue().asText()));
    return properties;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return about.get("writable").asBoolean() ? READ_AND_WRITE : READ;
  }

  @Override
  StructType readSchema() {
    return schema;
  }

  @Override
  boolean takesPushDown() {
    return about.get("pushdown").asBoolean();
  }

  @Override
  CaseInsensitiveStringMap options(CaseInsensitiveStringMap given) {
    Map<String, String> all = new HashMap<>(given.asCaseSensitiveMap());
    all.put(HANDLE, Requests.write(about.get("handle")));
    return new CaseInsensitiveStringMap(all);
  }
}
