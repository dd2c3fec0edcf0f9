"""Rows P34 to P38: one log over three regions, with round trips of 0, 20 and 60 ms between them, less what was added.

A sandbox of its own has three regions, two storage nodes in each, whose gateways delay what passes (docs/regions.md).
Processes in the regions do the work. A figure with a delay stands beside the same figure without one, of the same
round: through the same gateways, on the same two cores. What is left when the added delay has been taken away is what
an application pays on top of its network. A figure below 0 is a defect of the benchmark, and the row says so.

**P34, writes.** One record of 100 B at a time from the first region, acknowledged by two regions: by acknowledgements
(3/3/2) and by copies (6/6/4). Less the round trip to the nearest other region, which all are or, in one row, the
second (20 ms) beside a third one that is far (60 ms). And what goes abroad of records of 1 KB in entries of 256 KB, as
the gateways have counted it on connections to storage nodes, over the copies abroad times the bytes of the entries.

**P35, tails.** A log, followed in the first region and in the second: from the writer's acknowledgement to the
delivery. Each record is written when the one before has arrived everywhere. Elsewhere it is less one way.

**P36, catching up.** A completed log read by columns in the third region, from `open_reader` on; of one log that
region has copies, of the other none. No goal is set. And the bytes that came from other regions for the first one, over
its bytes.

**P37, Spark.** A batch query over the same two logs by a session in the third region, planning included.

**P38, appends through a proxy.** A client in the first region, one record at a time, through a proxy of its own region
(one round trip, the writer's) and through one of the second (one more, the client's).

What a unit of each load costs is of the shorter delay, and of none where bytes are counted: delays cost no processor.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks import region_jobs as jobs
from benchmarks.cluster import PAGES, calls_of, watch_of
from benchmarks.costs import CLIENT, Costs, costs_of
from benchmarks.proxies import write_proxy
from benchmarks.region_jobs import Looks, RegionProcess, records_of, region_process
from benchmarks.results import Row, Target
from benchmarks.session import CORES
from dlspark.sandbox.sandbox import Sandbox
from metadata.foundation.errors import check

ROUND_TRIPS_MS: Final = (20.0, 60.0)
NEAR_MS, FAR_MS = ROUND_TRIPS_MS
HOME, SECOND, THIRD = "r1", "r2", "r3"
BY_COPIES: Final[Mapping[str, Any]] = {"surviveBy": "copies"}
"""6/6/4. The regions' own settings say 3/3/2, by acknowledgements."""
TWO_COPIES: Final[Mapping[str, Any]] = {
    "survive": "",
    "surviveBy": "copies",
    "bkcEnsembleSize": 2,
    "bkcWriteQuorumSize": 2,
    "bkcAckQuorumSize": 2,
    "bkc.ensemblePlacementPolicy": "regionaware",
}
"""In the writer's region and another one, which must not be the third."""
COPIES_ABROAD: Final = {"3/3/2": 2, "6/6/4": 4}
"""Copies in other regions than the writer's."""
OWN, ABROAD = "copies-everywhere", "no-copies-in-the-third"
"""The logs that are read whole."""
RECORDS: Final = 24
SKIPPED: Final = 4
"""Of the first records of a window: they begin a segment, open connections, and find the long poll."""
PAUSE_S: Final = 0.065
"""Behind each acknowledgement, whatever the delay is, so that all windows find caches alike: in that time the last
record has been delivered everywhere, and readers wait again."""
IDLE_S: Final = 0.02
"""The same where only writes are measured: processes that have been idle as long as a delay takes wake up late, by up
to a millisecond on a path through five of them, and without it only those of the delayed windows would have been."""
MEGABYTES: Final = 32
WRITE_GOAL_MS: Final = 1.0
TAIL_GOAL: Final = 1.2
TAIL_GOAL_MS: Final = 2.0
BYTES_GOAL: Final = 1.01
"""Heads of requests and answers are among the bytes."""
FETCHED_GOAL: Final = 0.1
"""As many reads at most may be asked for a second time, elsewhere, where an answer is late (`hedgedReadsPercent`)."""
SPARK_RUNS: Final = 2
SPARK_WARM_UPS: Final = 4
Figures = dict[str, float]
"""What was measured at one round trip, by name: times in seconds."""


class RegionBenchmark:
    """Rows P34 to P38.

    Args:
        directory: for the sandbox.
        stack: what is ended at last.
        spark: whether to measure Spark's rows.
        round_trips_ms: of which rows are measured; the first and the last are the near and the far one.
        records: appended in each window.
        megabytes: of the logs that are read whole.
    """

    def __init__(
        self,
        directory: Path,
        stack: ExitStack,
        *,
        spark: bool = True,
        round_trips_ms: Sequence[float] = ROUND_TRIPS_MS,
        records: int = RECORDS,
        megabytes: int = MEGABYTES,
    ) -> None:
        self._trips = tuple(round_trips_ms)
        self._records = records
        self._megabytes = megabytes
        self._count = 0
        self._sandbox = stack.enter_context(
            Sandbox(directory / "regions", node_settings=PAGES, regions=3, round_trip_ms=0)
        )
        self._uri = self._sandbox.uri
        environments = {name: self._sandbox.regions.environment(name) for name in self._sandbox.regions.names}
        self._in = {name: stack.enter_context(region_process(each)) for name, each in environments.items()}
        self._follower = stack.enter_context(region_process(environments[HOME]))
        self._pids = {name: process.do(jobs.process_id) for name, process in self._in.items()}
        self._follower_pid = self._follower.do(jobs.process_id)
        self._proxies = {
            place.name: stack.enter_context(
                write_proxy(
                    self._uri, directory, host=place.host, environment=environments[place.name], hands_over=False
                )
            )
            for place in self._sandbox.state.regions[:2]
        }
        self._entry_bytes = self._in[HOME].do(jobs.make_log, self._uri, {}, OWN, megabytes)
        third = self._sandbox.state.regions[2].host
        self._in[HOME].do(jobs.make_log_without, self._uri, dict(TWO_COPIES), ABROAD, megabytes, third)
        self._spark: RegionProcess | None = None
        if spark:
            self._spark = stack.enter_context(region_process(environments[THIRD]))
            self._driver_pid = self._spark.do(jobs.process_id)
            self._jvm_pid = self._spark.do(jobs.start_spark, self._uri, directory / "spark-in-a-region")
            for _ in range(SPARK_WARM_UPS):
                self._spark.do(jobs.sum_by_spark, OWN, CORES, megabytes)
            stack.callback(self._spark.do, jobs.stop_spark)
        self._rows: dict[tuple[str, float], Row] = {}
        self._make_rows()
        self.rows = list(self._rows.values())

    # ------------------------------------------------------------------------------------ rows

    def _row(self, name: str, at: float, key: str, what: str, unit: str, limit: str, goal: float | None = 1.0) -> None:
        self._rows[name, at] = Row(key, what, unit, limit, None if goal is None else Target(goal, at_most=True))

    def _make_rows(self) -> None:
        local = "ms: without delay, p50"
        for how in COPIES_ABROAD:
            for trip in self._trips:
                self._row(how, trip, "P34", f"write {how}, {trip:g} ms, p50 less {trip:g}", "ms", f"{local} + 1")
        near, far = self._trips[0], self._trips[-1]
        what = f"write 3/3/2, nearest {near:g} ms, other {far:g} ms, p50 less {near:g}"
        self._row("uneven", near, "P34", what, "ms", f"{local} + 1")
        for how, copies in COPIES_ABROAD.items():
            self._row(f"bytes {how}", 0, "P34", f"bytes sent abroad, {how}", "MB", f"MB: {copies} copies", BYTES_GOAL)
        for trip in self._trips:
            self._row("here", trip, "P35", f"tail in the writer's region, {trip:g} ms, p50", "ms", local, TAIL_GOAL)
            what = f"tail elsewhere, {trip:g} ms, p50 less {trip / 2:g}"
            self._row("there", trip, "P35", what, "ms", "ms wanted")
        for trip in self._trips:
            self._row("own", trip, "P36", f"catch up from copies here, {trip:g} ms", "s", "s: without delay", None)
            what = f"catch up from copies elsewhere, {trip:g} ms"
            self._row("abroad", trip, "P36", what, "s", "s: from copies here", None)
        what = "bytes from elsewhere to catch up from copies here"
        self._row("fetched", 0, "P36", what, "MB", "MB: the log", FETCHED_GOAL)
        self._rows["fetched", 0].counts = True
        for trip in self._trips if self._spark is not None else ():
            self._row("spark own", trip, "P37", f"Spark batch, copies here, {trip:g} ms", "s", "s: without delay", None)
            what = f"Spark batch, copies elsewhere, {trip:g} ms"
            self._row("spark abroad", trip, "P37", what, "s", "s: from copies here", None)
        for trip in self._trips:
            for region, whose, times in ((HOME, "the own", 1), (SECOND, "another", 2)):
                what = f"append by {whose} region's proxy, {trip:g} ms, p50 less {times * trip:g}"
                self._row(f"proxy {region}", trip, "P38", what, "ms", f"{local} + 1")

    def round(self, seconds: float) -> None:
        """Measure every row once: windows are of so many records, and queries run to their end, whatever `seconds`
        says."""
        self._set_round_trips(0.0, 0.0)
        self._count_bytes()
        plain, _ = self._figures()
        for trip in self._trips:
            self._set_round_trips(trip, trip)
            first = trip == self._trips[0]
            found, costs = self._figures(counted=first)
            self._add(trip, found, plain, costs if first else {})
        near, far = self._trips[0], self._trips[-1]
        self._set_round_trips(near, far)
        self._rows["uneven", near].add(self._write({})[0] * 1e3 - near, plain["3/3/2"] * 1e3 + WRITE_GOAL_MS)
        self._set_round_trips(0.0, 0.0)

    def _add(self, trip: float, found: Figures, plain: Figures, costs: Mapping[str, Costs]) -> None:
        """Add what was found at one round trip to its rows, less what was added, and what a unit cost."""

        def add(name: str, figure: float, limit: float) -> None:
            self._rows[name, trip].add(figure, limit, costs=costs.get(name))

        for how in COPIES_ABROAD:
            add(how, found[how] * 1e3 - trip, plain[how] * 1e3 + WRITE_GOAL_MS)
        add("here", found["here"] * 1e3, plain["here"] * 1e3)
        add("there", found["there"] * 1e3 - trip / 2, TAIL_GOAL_MS)
        for times, region in enumerate((HOME, SECOND), start=1):
            name = f"proxy {region}"
            add(name, found[name] * 1e3 - times * trip, plain[name] * 1e3 + WRITE_GOAL_MS)
        for kind in ("", "spark ") if self._spark is not None else ("",):
            add(f"{kind}own", found[f"{kind}own"], plain[f"{kind}own"])
            add(f"{kind}abroad", found[f"{kind}abroad"], found[f"{kind}own"])

    # ------------------------------------------------------------------------------------ measuring

    def _figures(self, *, counted: bool = False) -> tuple[Figures, dict[str, Costs]]:
        """Measure everything once at the round trips that are set, and what a unit of each load costs. `counted`: the
        system calls of appends as well."""
        found: Figures = {}
        costs: dict[str, Costs] = {}
        found["here"], found["there"], costs["here"] = self._tails()
        for how, settings in (("3/3/2", {}), ("6/6/4", BY_COPIES)):
            found[how], costs[how] = self._write(settings, counted=counted)
        for what, log in (("own", OWN), ("abroad", ABROAD)):
            looks = self._looks({CLIENT: [self._pids[THIRD]]})
            found[what], costs[what] = self._in[THIRD].do(jobs.catch_up, looks, self._uri, log, self._megabytes)
            if self._spark is not None:
                found[f"spark {what}"], costs[f"spark {what}"] = self._query(self._spark, log)
        for region, proxy in self._proxies.items():
            looks = self._looks({CLIENT: [self._pids[HOME]], f"proxy in {region}": [proxy.pid]}, counted=counted)
            arguments = (looks, proxy.address, self._name(), self._records, SKIPPED, IDLE_S)
            seconds, costs[f"proxy {region}"] = self._in[HOME].do(jobs.append_through, *arguments)
            found[f"proxy {region}"] = statistics.median(seconds)
        return found, costs

    def _looks(self, processes: Mapping[str, Sequence[int]], *, counted: bool = False) -> Looks:
        calls = calls_of(self._sandbox, processes) if counted else None
        return Looks(watch_of(self._sandbox, processes), calls)

    def _query(self, spark: RegionProcess, log: str) -> tuple[float, Costs]:
        """Return the least seconds of some queries over a log, and what a row cost in all of them."""
        watch = watch_of(self._sandbox, {"driver": [self._driver_pid]}, jvm=self._jvm_pid)
        with watch:
            seconds = [spark.do(jobs.sum_by_spark, log, CORES, self._megabytes) for _ in range(SPARK_RUNS)]
        watch.units = SPARK_RUNS * records_of(self._megabytes)
        return min(seconds), costs_of("row", watch)

    def _tails(self) -> tuple[float, float, Costs]:
        """Return the seconds, p50, from a record's acknowledgement to a reader in the writer's region, and in another
        one; and what a record costs that both have."""
        name = self._new_log({})
        count = self._records + SKIPPED
        readers = {HOME: (self._follower, self._follower_pid), SECOND: (self._in[SECOND], self._pids[SECOND])}
        for follower, _ in readers.values():
            follower.begin(jobs.follow, self._uri, name, count)
        for follower, _ in readers.values():
            follower.until_ready()
        reading = {f"reader in {region}": [pid] for region, (_, pid) in readers.items()}
        looks = self._looks({CLIENT: [self._pids[HOME]], **reading})
        written, costs = self._in[HOME].do(jobs.write_paced, looks, self._uri, {}, name, count, PAUSE_S)
        here, there = (
            statistics.median(
                seen - end for seen, (_, end) in list(zip(follower.result(), written, strict=True))[SKIPPED:]
            )
            for follower, _ in readers.values()
        )
        return here, there, costs

    def _write(self, settings: Mapping[str, Any], *, counted: bool = False) -> tuple[float, Costs]:
        """Return the seconds of a write, p50, and what one costs."""
        looks = self._looks({CLIENT: [self._pids[HOME]]}, counted=counted)
        arguments = (looks, self._uri, dict(settings), self._new_log(settings), self._records + SKIPPED, IDLE_S)
        written, costs = self._in[HOME].do(jobs.write_paced, *arguments)
        return float(statistics.median(end - begin for begin, end in written[SKIPPED:])), costs

    def _count_bytes(self) -> None:
        """Count what crosses between regions for a log that is written, and for one that is read where its copies
        are."""
        for how, settings in (("3/3/2", {}), ("6/6/4", BY_COPIES)):
            watch = watch_of(self._sandbox, {CLIENT: [self._pids[HOME]]})
            before = self._between_nodes(HOME, sent=True)
            with watch:
                size = self._in[HOME].do(jobs.make_log, self._uri, dict(settings), self._name(), self._megabytes)
            watch.units = records_of(self._megabytes)
            sent = self._between_nodes(HOME, sent=True) - before
            copies = COPIES_ABROAD[how] * size
            check(sent >= copies, f"{sent} bytes went abroad, fewer than {COPIES_ABROAD[how]} copies of {size}")
            self._rows[f"bytes {how}", 0].add(sent / 1e6, copies / 1e6, costs=costs_of("record", watch))
        before = self._between_nodes(THIRD, sent=False)
        looks = self._looks({CLIENT: [self._pids[THIRD]]})
        _, costs = self._in[THIRD].do(jobs.catch_up, looks, self._uri, OWN, self._megabytes)
        fetched = self._between_nodes(THIRD, sent=False) - before
        self._rows["fetched", 0].add(fetched / 1e6, self._entry_bytes / 1e6, costs=costs)

    def _between_nodes(self, region: str, *, sent: bool) -> int:
        """Return the bytes that a region has sent to storage nodes of other regions so far, or got from them."""
        nodes = set(self._sandbox.node_ids)
        return sum(
            one.count
            for one in self._sandbox.regions.carried()
            if one.server in nodes and (one.source if sent else one.target) == region
        )

    def _set_round_trips(self, near_ms: float, far_ms: float) -> None:
        """Let the first two regions be so near to each other, and the third so far from both."""
        for region in self._sandbox.regions.names:
            self._sandbox.regions.slow(region, far_ms if region == THIRD else near_ms)

    def _new_log(self, settings: Mapping[str, Any]) -> str:
        name = self._name()
        self._in[HOME].do(jobs.make_log, self._uri, dict(settings), name, 0)
        return name

    def _name(self) -> str:
        self._count += 1
        return f"regional-{self._count}"
