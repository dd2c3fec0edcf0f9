package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.sql.Date;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import org.apache.spark.sql.sources.EqualNullSafe;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.sources.IsNull;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;

/**
 * A filter as JSON, {@code ["=", "segment", 3]}: comparisons of a column with text, a truth value, a number (a decimal as
 * {@code {"decimal": text}}), a time (as {@code {"us": microseconds}}) or a day ({@code {"days": number}}). What else there
 * is stays with Spark.
 */
final class FilterWords {

  private FilterWords() {}

  /** The filter's words, or null for one that has none. */
  static JsonNode of(Filter filter) {
    if (filter instanceof EqualTo it) {
      return words("=", it.attribute(), it.value());
    }
    if (filter instanceof EqualNullSafe it) {
      return words("<=>", it.attribute(), it.value());
    }
    if (filter instanceof GreaterThan it) {
      return words(">", it.attribute(), it.value());
    }
    if (filter instanceof GreaterThanOrEqual it) {
      return words(">=", it.attribute(), it.value());
    }
    if (filter instanceof LessThan it) {
      return words("<", it.attribute(), it.value());
    }
    if (filter instanceof LessThanOrEqual it) {
      return words("<=", it.attribute(), it.value());
    }
    if (filter instanceof IsNotNull it) {
      return Requests.JSON.createArrayNode().add("not null").add(it.attribute());
    }
    if (filter instanceof IsNull it) {
      return Requests.JSON.createArrayNode().add("null").add(it.attribute());
    }
    return filter instanceof In it ? in(it) : null;
  }

  private static JsonNode in(In filter) {
    ArrayNode values = Requests.JSON.createArrayNode();
    for (Object one : filter.values()) {
      JsonNode value = value(one);
      if (value == null) {
        return null;
      }
      values.add(value);
    }
    ArrayNode words = Requests.JSON.createArrayNode().add("in").add(filter.attribute());
    return words.add(values);
  }

  private static JsonNode words(String comparison, String column, Object compared) {
    JsonNode value = value(compared);
    return value == null ? null : Requests.JSON.createArrayNode().add(comparison).add(column).add(value);
  }

  private static JsonNode value(Object value) {
    if (value instanceof Long || value instanceof Integer || value instanceof Short || value instanceof Byte) {
      return Requests.JSON.getNodeFactory().numberNode(((Number) value).longValue());
    }
    if (value instanceof Double || value instanceof Float) {
      double number = ((Number) value).doubleValue();
      return Double.isFinite(number) ? Requests.JSON.getNodeFactory().numberNode(number) : null;
    }
    if (value instanceof BigDecimal number) {
      return Requests.JSON.createObjectNode().put("decimal", number.toString());
    }
    if (value instanceof Boolean truth) {
      return Requests.JSON.getNodeFactory().booleanNode(truth);
    }
    if (value instanceof String text) {
      return Requests.JSON.getNodeFactory().textNode(text);
    }
    if (value instanceof Timestamp time) {
      return time(time.toInstant());
    }
    if (value instanceof Date date) {
      return day(date.toLocalDate());
    }
    if (value instanceof LocalDate date) {
      return day(date);
    }
    return value instanceof Instant instant ? time(instant) : null;
  }

  private static ObjectNode day(LocalDate date) {
    return Requests.JSON.createObjectNode().put("days", date.toEpochDay());
  }

  /**
   * A time in microseconds since the epoch. They are counted from its seconds: what counts nanoseconds on the way, as
   * {@code ChronoUnit.MICROS.between} does, has no times before 1677 or after 2262.
   */
  private static ObjectNode time(Instant instant) {
    BigInteger micros =
        BigInteger.valueOf(instant.getEpochSecond())
            .multiply(BigInteger.valueOf(1_000_000))
            .add(BigInteger.valueOf(instant.getNano() / 1000));
    return Requests.JSON.createObjectNode().put("us", micros);
  }
}
