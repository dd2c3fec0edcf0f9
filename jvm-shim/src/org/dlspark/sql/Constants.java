package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.math.BigDecimal;
import java.util.Base64;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UnaryMinus;
import org.apache.spark.sql.catalyst.expressions.UnaryPositive;
import org.apache.spark.sql.catalyst.parser.CatalystSqlParser$;
import org.apache.spark.sql.connector.catalog.ColumnDefaultValue;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.LiteralValue;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Defaults of columns as they travel between Spark and Python ({@code dlspark/spark/catalog/column_defaults.py}): the
 * SQL of a constant, and its value in JSON. Booleans, whole numbers and texts are as they are; floats and decimals are
 * text; bytes are in base64; dates are days, times are microseconds since the epoch.
 *
 * <p>A log keeps one value, which rows from before the column show as well. So an expression that has another value each
 * time it is asked for, as {@code current_timestamp()}, is sent without a value, and Python refuses it.
 */
final class Constants {

  private Constants() {}

  /** What a statement gives as a default: {@code sql}, and {@code type} and {@code value} if it is a constant. */
  static ObjectNode words(ColumnDefaultValue given) {
    ObjectNode words = Requests.JSON.createObjectNode();
    String sql = given.getSql();
    words.put("sql", sql == null ? String.valueOf(given.getExpression()) : sql);
    Literal<?> literal = given.getValue();
    boolean constant = sql == null || isConstant(CatalystSqlParser$.MODULE$.parseExpression(sql));
    if (literal != null && constant && put(words, literal.value())) {
      words.put("type", literal.dataType().typeName());
    }
    return words;
  }

  /** A column's default of what Python says of it. */
  static ColumnDefaultValue of(JsonNode said, DataType type) {
    return new ColumnDefaultValue(said.get("sql").asText(), LiteralValue.apply(value(said.get("value"), type), type));
  }

  private static boolean isConstant(Expression parsed) {
    boolean wraps = parsed instanceof Cast || parsed instanceof UnaryMinus || parsed instanceof UnaryPositive;
    return wraps
        ? isConstant(parsed.children().head())
        : parsed instanceof org.apache.spark.sql.catalyst.expressions.Literal;
  }

  /** Puts a value in Spark's own form; false for one that cannot be a default. */
  private static boolean put(ObjectNode words, Object value) {
    if (value == null) {
      words.putNull("value");
    } else if (value instanceof Boolean truth) {
      words.put("value", truth);
    } else if (value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte) {
      words.put("value", ((Number) value).longValue());
    } else if (value instanceof Float || value instanceof Double || value instanceof UTF8String) {
      words.put("value", value.toString());
    } else if (value instanceof Decimal decimal) {
      words.put("value", decimal.toJavaBigDecimal().toPlainString());
    } else if (value instanceof byte[] bytes) {
      words.put("value", Base64.getEncoder().encodeToString(bytes));
    } else {
      return false;
    }
    return true;
  }

  private static Object value(JsonNode said, DataType type) {
    if (type instanceof BooleanType) {
      return said.asBoolean();
    }
    if (type instanceof IntegerType || type instanceof DateType) {
      return said.asInt();
    }
    if (type instanceof FloatType) {
      return Float.parseFloat(said.asText());
    }
    if (type instanceof DoubleType) {
      return Double.parseDouble(said.asText());
    }
    if (type instanceof DecimalType decimal) {
      return Decimal.apply(new BigDecimal(said.asText()), decimal.precision(), decimal.scale());
    }
    if (type instanceof StringType) {
      return UTF8String.fromString(said.asText());
    }
    return type instanceof BinaryType ? Base64.getDecoder().decode(said.asText()) : (Object) said.asLong();
  }
}
