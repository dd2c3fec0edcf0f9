package distributedlog;

import java.util.Arrays;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.dlspark.sql.FormatTable;
import org.dlspark.sql.SparkVersions;

/**
 * What {@code format("distributedlog")} finds by its name: Spark looks for a class {@code <format>.DefaultSource} before
 * it asks the session for data sources of Python.
 *
 * <p>It is Spark's own wrapper of a Python data source, with two differences:
 *
 * <ul>
 *   <li>Spark looks for the session's Python sources through the <em>active session of the thread</em>, which a Python
 *       thread other than the first has not: {@code df.write} and {@code df.writeStream} ended in {@code
 *       DATA_SOURCE_NOT_FOUND} there. This class needs no active session, the default one is enough.
 *   <li>Spark's wrapper keeps the plan of the first read, and the filters of the last one, for all reads of a frame. The
 *       table that is made here keeps nothing: it is read as those of the catalog are.
 * </ul>
 */
public final class DefaultSource extends PythonDataSourceV2 {

  private StructType inferred;

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    inferred = super.inferSchema(options);
    return inferred;
  }

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
    return SparkVersions.isTested()
        ? new FormatTable(schema, !schema.equals(inferred), new CaseInsensitiveStringMap(properties))
        : super.getTable(schema, partitioning, properties);
  }

  private static String column(Transform transform) {
    return transform.references().length == 1
        ? String.join(".", transform.references()[0].fieldNames())
        : transform.describe();
  }
}
