package org.dlspark.sql;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownTopN;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Collects what a query needs of a log: which columns, which rows, how many, or only their number.
 *
 * <p>Python decides what can be kept of it. Filters and aggregates are asked about at once, because Spark has to know
 * what is left for it to do; columns and the limit travel with the read.
 *
 * <p>Of a table with a log's own columns no filter is kept and no order is known, whatever they are called: a column {@code
 * segment} that a log declares is not the one that records have.
 */
final class LogScanBuilder
    implements SupportsPushDownFilters,
        SupportsPushDownRequiredColumns,
        SupportsPushDownLimit,
        SupportsPushDownTopN,
        SupportsPushDownAggregates {

  private final LogTable table;
  private final CaseInsensitiveStringMap options;
  private final boolean declared;
  private StructType columns;
  private Filter[] kept = new Filter[0];
  private final ObjectNode pushed = Requests.JSON.createObjectNode();
  private final QuerySnapshot snapshot = QuerySnapshot.ofThisQuery();
  private SummaryScan summary;

  LogScanBuilder(LogTable table, CaseInsensitiveStringMap options) {
    this.table = table;
    this.options = options;
    this.columns = table.readSchema();
    JsonNode version = table.declared();
    this.declared = version != null;
    if (declared) {
      pushed.set("declared", version);
    }
  }

  @Override
  public Filter[] pushFilters(Filter[] filters) {
    ArrayNode said = Requests.JSON.createArrayNode();
    List<Filter> understood = new ArrayList<>();
    List<Filter> left = new ArrayList<>();
    for (Filter filter : filters) {
      JsonNode words = FilterWords.of(filter);
      if (words == null) {
        left.add(filter);
      } else {
        said.add(words);
        understood.add(filter);
      }
    }
    if (table.takesPushDown() && !declared && !understood.isEmpty()) {
      keep(understood, said, left);
    } else if (!understood.isEmpty()) {
      pushed.set("hints", said);
      left.addAll(understood);
    }
    return left.toArray(new Filter[0]);
  }

  /** Asks which of the filters Python keeps exactly; the others are added to {@code left}. */
  private void keep(List<Filter> understood, ArrayNode said, List<Filter> left) {
    ObjectNode request = Requests.request("filters");
    request.set("filters", said);
    JsonNode exact = table.ask(request);
    ArrayNode words = pushed.putArray("filters");
    ArrayNode hints = pushed.putArray("hints");
    List<Filter> taken = new ArrayList<>();
    for (int i = 0; i < understood.size(); i++) {
      if (exact.get(i).asBoolean()) {
        words.add(said.get(i));
        taken.add(understood.get(i));
      } else {
        // Spark looks at the rows again, but it may be known of many that they are not wanted.
        hints.add(said.get(i));
        left.add(understood.get(i));
      }
    }
    kept = taken.toArray(new Filter[0]);
  }

  @Override
  public Filter[] pushedFilters() {
    return kept;
  }

  @Override
  public void pruneColumns(StructType required) {
    columns = required;
  }

  /** Spark limits again what comes: several partitions may each come near the limit. */
  @Override
  public boolean pushLimit(int limit) {
    if (table.takesPushDown()) {
      pushed.put("limit", limit);
    }
    return table.takesPushDown();
  }

  /** The first or last rows in the log's own order. Spark sorts and limits again what comes. */
  @Override
  public boolean pushTopN(SortOrder[] orders, int limit) {
    if (declared) {
      return false;
    }
    ArrayNode columns = Requests.JSON.createArrayNode();
    boolean descending = orders[0].direction() == SortDirection.DESCENDING;
    for (SortOrder order : orders) {
      if (!(order.expression() instanceof NamedReference column && column.fieldNames().length == 1)
          || (order.direction() == SortDirection.DESCENDING) != descending) {
        return false;
      }
      columns.add(column.fieldNames()[0]);
    }
    if (pushLimit(limit)) {
      pushed.set("order", columns);
      pushed.put("descending", descending);
    }
    return table.takesPushDown();
  }

  /** Both limits come twice: from each partition, and from Spark. */
  @Override
  public boolean isPartiallyPushed() {
    return true;
  }

  @Override
  public boolean supportCompletePushDown(Aggregation aggregation) {
    return summarised(aggregation);
  }

  @Override
  public boolean pushAggregation(Aggregation aggregation) {
    return summarised(aggregation);
  }

  /** Whether metadata and the entries at both ends tell the aggregates exactly; asked once for an aggregation. */
  private boolean summarised(Aggregation aggregation) {
    if (summary != null) {
      return true;
    }
    ArrayNode functions = Requests.JSON.createArrayNode();
    for (AggregateFunc function : aggregation.aggregateExpressions()) {
      ObjectNode words = words(function);
      if (words == null) {
        return false;
      }
      functions.add(words);
    }
    if (!table.takesPushDown() || aggregation.groupByExpressions().length > 0) {
      return false;
    }
    ObjectNode request = Requests.request("summarise");
    request.set("functions", functions);
    JsonNode values;
    synchronized (snapshot) {
      JsonNode answer = table.askAboutScan(request, options, snapshot.into(pushed));
      snapshot.learn(answer.get("seen"));
      values = answer.get("values");
    }
    if (values.isNull()) {
      return false;
    }
    summary = new SummaryScan(table, functions, values);
    return true;
  }

  private static ObjectNode words(AggregateFunc function) {
    ObjectNode words = Requests.JSON.createObjectNode();
    if (function instanceof CountStar) {
      return words.put("function", "count");
    }
    if (!(function.children().length == 1
        && function.children()[0] instanceof NamedReference column
        && column.fieldNames().length == 1)) {
      return null;
    }
    words.put("column", column.fieldNames()[0]);
    if (function instanceof Count count && !count.isDistinct()) {
      return words.put("function", "count");
    }
    if (function instanceof Min) {
      return words.put("function", "min");
    }
    return function instanceof Max ? words.put("function", "max") : null;
  }

  @Override
  public Scan build() {
    return summary != null ? summary : new LogScan(table, columns, options, pushed, snapshot);
  }
}
