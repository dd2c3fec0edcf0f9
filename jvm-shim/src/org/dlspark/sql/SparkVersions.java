package org.dlspark.sql;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.spark.package$;

/**
 * Which Spark versions this code was tested with. It uses classes of Spark that are not public interfaces, so on any other
 * the catalog refuses to start instead of failing somewhere on the way, and {@code format("distributedlog")} is read by
 * Python alone.
 */
public final class SparkVersions {

  /** In the jar beside this class; {@code enable(spark)} reads the same file. */
  private static final String LIST = "tested-spark-versions.txt";

  private SparkVersions() {}

  /** Fails if the running Spark is of no tested minor version. */
  static void check() {
    if (!isTested()) {
      throw new UnsupportedOperationException(
          "The SQL catalog of dlspark was tested with Spark "
              + String.join(" and ", tested())
              + ", and this is Spark "
              + package$.MODULE$.SPARK_VERSION()
              + "; the catalog is not available. Install a tested PySpark, or use format(\"distributedlog\"), which"
              + " needs no Java code");
    }
  }

  /** Whether the running Spark is of a tested minor version. */
  public static boolean isTested() {
    return tested().contains(minor(package$.MODULE$.SPARK_VERSION()));
  }

  /** {@code 4.3} of {@code 4.3.0-SNAPSHOT}. */
  static String minor(String version) {
    String[] parts = version.split("\\.", 3);
    return parts.length < 2 ? version : parts[0] + "." + parts[1];
  }

  private static List<String> tested() {
    try (InputStream list = SparkVersions.class.getResourceAsStream(LIST)) {
      return new String(list.readAllBytes(), StandardCharsets.UTF_8).lines().filter(line -> !line.isBlank()).toList();
    } catch (IOException error) {
      throw new IllegalStateException("the jar has no readable " + LIST, error);
    }
  }
}
