package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.ColumnDefaultValue;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * One log as a table of the catalog, or one of the namespace's metadata tables.
 *
 * <p>What Python has to know again about the table travels unread from the answer to {@code load} into the options of
 * each read and write ({@code handle}): its log, its properties, its end where an older version was asked for.
 *
 * <p>Spark looks for cached rows by comparing tables. Two are the same if Python would read the same from them: the same
 * log ({@code created}: one that was deleted and made again is another) with the same handle, which says the version of
 * the columns, too.
 *
 * <p>A log that declares a schema is {@code typed}: its columns are the schema's, Spark matches by position or by name
 * what is written with them, and two more, of where a record is and why it does not fit, are hidden in {@code SELECT *}.
 * To a query every column may be null, since a record may not fit; what is NOT NULL is checked where rows are written, by
 * Python. Only what prints a table for people is told of it.
 */
class CatalogTable extends LogTable implements SupportsMetadataColumns {

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

  // Without ACCEPT_ANY_SCHEMA: Spark resolves columns, casts values and takes defaults.
  private static final Set<TableCapability> READ_AND_WRITE_COLUMNS =
      Set.of(
          TableCapability.BATCH_READ,
          TableCapability.MICRO_BATCH_READ,
          TableCapability.BATCH_WRITE,
          TableCapability.STREAMING_WRITE,
          TableCapability.TRUNCATE);

  /** What prints a table, so that it can be made again. */
  private static final String PRINTS = "org.apache.spark.sql.execution.datasources.v2.ShowCreateTableExec";

  private final String name;
  private final JsonNode about;
  private final Column[] columns;
  private final StructType schema;

  /** {@code about} is Python's answer to {@code load}. */
  CatalogTable(Requests requests, String catalog, Identifier ident, JsonNode about) {
    super(requests, Errors.ofTable(ident));
    this.name = catalog + "." + ident;
    this.about = about;
    columns = columns(false);
    StructType fields = new StructType();
    for (Column column : columns) {
      String metadata = column.metadataInJSON();
      fields =
          fields.add(
              column.name(),
              column.dataType(),
              true,
              metadata == null ? Metadata.empty() : Metadata.fromJson(metadata));
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
    boolean prints =
        StackWalker.getInstance()
            .walk(frames -> frames.anyMatch(frame -> frame.getClassName().equals(PRINTS)));
    return prints ? columns(true) : columns;
  }

  /** The columns; if {@code declared}, with NOT NULL as the log's schema has it. */
  private Column[] columns(boolean declared) {
    JsonNode found = about.get("columns");
    Column[] all = new Column[found.size()];
    for (int i = 0; i < all.length; i++) {
      JsonNode said = found.get(i);
      DataType type = DataType.fromJson(said.get("type").asText());
      boolean nullable = !(declared && said.path("required").asBoolean());
      ColumnDefaultValue value = said.hasNonNull("default") ? Constants.of(said.get("default"), type) : null;
      all[i] = Column.create(said.get("name").asText(), type, nullable, text(said, "comment"), value, metadata(said));
    }
    return all;
  }

  @Override
  public MetadataColumn[] metadataColumns() {
    JsonNode found = about.get("metadata_columns");
    MetadataColumn[] all = new MetadataColumn[found.size()];
    for (int i = 0; i < all.length; i++) {
      JsonNode said = found.get(i);
      DataType type = DataType.fromJson(said.get("type").asText());
      all[i] = new Hidden(said.get("name").asText(), type, text(said, "comment"), metadata(said));
    }
    return all;
  }

  private static String text(JsonNode said, String key) {
    return said.hasNonNull(key) ? said.get(key).asText() : null;
  }

  private static String metadata(JsonNode said) {
    return said.hasNonNull("metadata") ? Requests.write(said.get("metadata")) : null;
  }

  /** A column that is read only where it is named. */
  private record Hidden(String name, DataType dataType, String comment, String metadataInJSON)
      implements MetadataColumn {}

  @Override
  public Map<String, String> properties() {
    Map<String, String> properties = new TreeMap<>();
    about.get("properties").properties().forEach(one -> properties.put(one.getKey(), one.getValue().asText()));
    return properties;
  }

  @Override
  public Set<TableCapability> capabilities() {
    if (!about.get("writable").asBoolean()) {
      return READ;
    }
    return about.get("typed").asBoolean() ? READ_AND_WRITE_COLUMNS : READ_AND_WRITE;
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
