package org.dlspark.sql;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.spark.package$;

/**
 * Which Spark versions the catalog was tested with. It uses one class of Spark that is not a public interface, so on any
 * other it refuses to start instead of failing somewhere on the way.
 */
final class SparkVersions {

  /** In the jar beside this class; {@code enable(spark)} reads the same file. */
  private static final String LIST = "tested-spark-versions.txt";

  private SparkVersions() {}

  /** Fails if the running Spark is of no tested minor version. */
  static void check() {
    String running = package$.MODULE$.SPARK_VERSION();
    List<String> tested = tested();
    if (!tested.contains(minor(running))) {
      throw new UnsupportedOperationException(
          "The SQL catalog of dlspark was tested with Spark "
              + String.join(" and ", tested)
              + ", and this is Spark "
              + running
              + "; the catalog is not available. Install a tested PySpark, or use format(\"distributedlog\"), which"
              + " needs no Java code");
    }
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
