package distributedlog;

import java.util.Arrays;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;

/**
 * What {@code format("distributedlog")} finds by its name: Spark looks for a class {@code <format>.DefaultSource} before
 * it asks the session for data sources of Python.
 *
 * <p>It is Spark's own wrapper of a Python data source, and the rows go the way that they always go. But the session's
 * Python sources are only looked for through the <em>active session of the thread</em>, which a Python thread other than
 * the first has not: {@code df.write} and {@code df.writeStream} ended in {@code DATA_SOURCE_NOT_FOUND} there. This class
 * needs no active session, the default one is enough.
 */
public final class DefaultSource extends PythonDataSourceV2 {

  /** The connector's table; {@code partitioning} is what {@code df.write.partitionBy} named. */
  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    if (partitioning.length > 0) {
      String columns = String.join(",", Arrays.stream(partitioning).map(DefaultSource::column).toList());
      throw new IllegalArgumentException(
          "A log has no partitions to write by, as partitionBy("
              + columns
              + ") asks for; nothing was written. To spread rows over several logs by key columns give"
              + " option(\"partitionBy\", \""
              + columns
              + "\") with option(\"numLogs\", n) and a template of names, save(\"name-{}\"); or name each row's log in a"
              + " column log");
    }
    return super.getTable(schema, partitioning, properties);
  }

  private static String column(Transform transform) {
    return transform.references().length == 1
        ? String.join(".", transform.references()[0].fieldNames())
        : transform.describe();
  }
}
