package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.StagedTable;

/**
 * The log that {@code CREATE TABLE ... AS SELECT} has just created. Its rows are published whole by the write itself,
 * so there is nothing to commit; if the query fails, the log goes again, as it was not there before, unless others have
 * written to it since.
 */
final class StagedLogTable extends CatalogTable implements StagedTable {

  private final Runnable abandon;

  StagedLogTable(Requests requests, String catalog, Identifier ident, JsonNode about, Runnable abandon) {
    super(requests, catalog, ident, about);
    this.abandon = abandon;
  }

  @Override
  public void commitStagedChanges() {}

  @Override
  public void abortStagedChanges() {
    abandon.run();
  }
}
