package org.dlspark.sql;

import java.util.OptionalLong;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.UnaryNode;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;

/**
 * A query that does nothing but filter and select what one scan reads.
 *
 * <p>Spark keeps the physical plan of a frame object, and runs it again when that very object is collected again. With
 * nothing but filters and projections above the scan, each run reads the scan anew, and its tasks may read what was
 * appended since ({@code dlspark/spark/source/kept_plan.py}). Of all else Spark keeps parts between two runs: outputs of
 * exchanges, broadcasts, subqueries, cached rows, and counts that were known while the query was planned. New rows beside
 * those would be a result that no moment had, so such a plan is run again as it is.
 */
final class PlainRead {

  private PlainRead() {}

  /** The number of the execution in which this thread plans {@code scan}, if its query is a plain read of that alone. */
  static OptionalLong executionOf(Scan scan) {
    String execution = SparkContext.getOrCreate().getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
    if (execution == null) {
      return OptionalLong.empty(); // a plan that is explained, cached or made an RDD of
    }
    long number = Long.parseLong(execution);
    QueryExecution query = SQLExecution.getQueryExecution(number);
    return query != null && reads(query.optimizedPlan(), scan) ? OptionalLong.of(number) : OptionalLong.empty();
  }

  /** Whether a plan is filters and projections above this very scan: another query may be planned in the same execution. */
  private static boolean reads(LogicalPlan query, Scan scan) {
    LogicalPlan plan = query;
    while (plan instanceof Filter || plan instanceof Project) {
      if (!plan.subqueries().isEmpty()) {
        return false;
      }
      plan = ((UnaryNode) plan).child();
    }
    return plan instanceof DataSourceV2ScanRelation read && read.scan() == scan;
  }
}
