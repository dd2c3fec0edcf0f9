package org.dlspark.sql;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.catalog.TableChange;

/**
 * What {@code ALTER TABLE} does with columns, in words that Python reads ({@code dlspark/spark/catalog/declared_columns.py}):
 * it knows which changes a log's schema can have.
 */
final class ColumnChanges {

  private ColumnChanges() {}

  /** The change of a column in words; null for a change that Python has no words for. */
  static ObjectNode words(TableChange change) {
    if (!(change instanceof TableChange.ColumnChange column)) {
      return null;
    }
    ObjectNode words = Requests.JSON.createObjectNode();
    ArrayNode path = words.putArray("path");
    for (String part : column.fieldNames()) {
      path.add(part);
    }
    if (change instanceof TableChange.AddColumn add) {
      words.put("kind", "add").put("type", add.dataType().json()).put("nullable", add.isNullable());
      words.put("comment", add.comment());
      if (add.defaultValue() != null) {
        words.set("default", Constants.words(add.defaultValue()));
      }
      return put(words, add.position());
    }
    if (change instanceof TableChange.DeleteColumn drop) {
      return words.put("kind", "drop").put("if_exists", drop.ifExists());
    }
    if (change instanceof TableChange.RenameColumn rename) {
      return words.put("kind", "rename").put("name", rename.newName());
    }
    if (change instanceof TableChange.UpdateColumnType type) {
      return words.put("kind", "type").put("type", type.newDataType().json());
    }
    if (change instanceof TableChange.UpdateColumnNullability nullability) {
      return words.put("kind", "nullable").put("nullable", nullability.nullable());
    }
    if (change instanceof TableChange.UpdateColumnComment comment) {
      return words.put("kind", "comment").put("comment", comment.newComment());
    }
    if (change instanceof TableChange.UpdateColumnPosition position) {
      return put(words.put("kind", "position"), position.position());
    }
    return change instanceof TableChange.UpdateColumnDefaultValue ? words.put("kind", "default") : null;
  }

  /** Adds where among its siblings a column is to be: first, or behind one; nothing for the end. */
  private static ObjectNode put(ObjectNode words, TableChange.ColumnPosition position) {
    if (position != null) {
      ObjectNode place = words.putObject("position");
      if (position instanceof TableChange.After after) {
        place.put("after", after.column());
      }
    }
    return words;
  }
}
