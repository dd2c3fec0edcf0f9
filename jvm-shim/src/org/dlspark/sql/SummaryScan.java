package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * Aggregates of a whole scan that the log's metadata tells exactly: one row, known while the query is planned.
 *
 * <p>All of them are 64-bit integers, or null for the least and greatest of no rows; a timestamp is one in Spark's own
 * form, microseconds since the epoch.
 */
final class SummaryScan implements LocalScan {

  private final LogTable table;
  private final StructType schema;
  private final Object[] values;

  /** {@code functions} as they were asked, {@code answers} in the same order. */
  SummaryScan(LogTable table, JsonNode functions, JsonNode answers) {
    this.table = table;
    StructType fields = new StructType();
    values = new Object[answers.size()];
    for (int i = 0; i < values.length; i++) {
      JsonNode function = functions.get(i);
      String name = function.get("function").asText();
      String column = function.has("column") ? function.get("column").asText() : "*";
      DataType type = name.equals("count") ? DataTypes.LongType : table.readSchema().apply(column).dataType();
      fields = fields.add(name + "(" + column + ")", type);
      values[i] = answers.get(i).isNull() ? null : (Object) answers.get(i).asLong();
    }
    schema = fields;
  }

  @Override
  public StructType readSchema() {
    return schema;
  }

  @Override
  public InternalRow[] rows() {
    return new InternalRow[] {new GenericInternalRow(values)};
  }

  @Override
  public String description() {
    return "distributedlog " + table.name() + " " + String.join(", ", schema.fieldNames()) + " from metadata";
  }
}
