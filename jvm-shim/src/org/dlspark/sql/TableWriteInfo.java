package org.dlspark.sql;

import java.util.Optional;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What Spark says of a write, with the table's options beside those of the query. */
record TableWriteInfo(LogicalWriteInfo info, CaseInsensitiveStringMap options) implements LogicalWriteInfo {

  @Override
  public String queryId() {
    return info.queryId();
  }

  @Override
  public StructType schema() {
    return info.schema();
  }

  @Override
  public Optional<StructType> rowIdSchema() {
    return info.rowIdSchema();
  }

  @Override
  public Optional<StructType> metadataSchema() {
    return info.metadataSchema();
  }
}
