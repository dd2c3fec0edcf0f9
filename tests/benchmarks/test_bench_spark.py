"""The benchmark of the Spark connector: jobs are warm before they count."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.spark_jobs import MOST_WARM_UPS, Job, run_until_steady


def timed(*seconds: list[float]) -> tuple[list[Job], Callable[[Job], float]]:
    """Jobs, and what times them: the n-th run of a job takes the n-th of its numbers, and then the last."""
    jobs: list[Job] = [lambda: None for _ in seconds]
    left = {id(job): list(times) for job, times in zip(jobs, seconds, strict=True)}

    def time_s(job: Job) -> float:
        times = left[id(job)]
        return times.pop(0) if len(times) > 1 else times[0]

    return jobs, time_s


def test_jobs_run_until_none_of_them_gets_faster() -> None:
    assert run_until_steady(*timed([6.6, 4.3, 3.1, 1.9, 2.1], [6.5, 3.4, 3.3])) == 6
    assert run_until_steady(*timed([1.0], [2.0])) == 3
    assert run_until_steady(*timed([1.0, 0.95, 0.93], [2.0])) == 3


def test_one_run_that_is_no_faster_does_not_end_it() -> None:
    source, beside = [1.85, 1.31, 1.30, 0.82, 0.83, 0.84], [2.17, 0.99, 0.99, 0.86, 0.63, 0.68]
    assert run_until_steady(*timed(source, beside)) == 7


def test_a_machine_that_gets_faster_and_faster_is_not_waited_for() -> None:
    assert run_until_steady(*timed([0.5**number for number in range(20)])) == MOST_WARM_UPS
