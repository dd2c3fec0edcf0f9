package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;

/**
 * Where logs began and ended when one query looked at them first: every scan of the query reads that much, whatever is
 * appended while the query is planned and runs. Another query, or the same frame used again, has a snapshot of its own.
 *
 * <p>What is in it is Python's ({@code dlspark.spark.source.query_snapshot}) and travels unread: each question about a scan takes
 * along what is known, and the answer brings that back with what was looked at for it. So only one scan of a query asks at
 * a time.
 *
 * <p>Spark has an object for the planning of each query, its {@link QueryPlanningTracker}, which the thread that optimizes
 * the query is told of. A snapshot lives as long as that object, or as the query's scans.
 */
final class QuerySnapshot {

  private static final Map<QueryPlanningTracker, QuerySnapshot> OF_QUERIES = new WeakHashMap<>();

  private JsonNode seen = Requests.JSON.createObjectNode();

  private QuerySnapshot() {}

  /** That of the query which this thread is optimizing; a new one outside of queries. */
  static QuerySnapshot ofThisQuery() {
    scala.Option<QueryPlanningTracker> tracker = QueryPlanningTracker.get();
    if (tracker.isEmpty()) {
      return new QuerySnapshot();
    }
    synchronized (OF_QUERIES) {
      return OF_QUERIES.computeIfAbsent(tracker.get(), query -> new QuerySnapshot());
    }
  }

  /** What was pushed down to a scan, with what is known beside it. Called, as {@link #learn}, holding the lock. */
  ObjectNode into(ObjectNode pushed) {
    return pushed.deepCopy().set("seen", seen);
  }

  /** Keeps what an answer says is known now; null if it is of a scan that sees no log. */
  void learn(JsonNode all) {
    seen = all == null ? seen : all;
  }
}
