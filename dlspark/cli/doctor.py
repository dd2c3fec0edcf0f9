"""`dlspark doctor`: what is wrong with the interpreters, Java, the machine or the cluster, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dlspark.cli.common import Json, Output, OutputOption, UriOption, exit_with, print_result


def doctor(
    uri: UriOption = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Where a sandbox or storage node keeps its data; ~/.dlspark/sandbox if not said."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Look for what would keep dlspark from working here: interpreters of Spark's workers, Java, modules in the way,
    ports, descriptors, disks, the clock, certificates, the namespace. Exits with 3 if something fails. Nothing is
    changed."""
    from dlspark.cli.doctor_checks import (
        CheckOutcome,
        check_clock,
        check_compiled,
        check_descriptors,
        check_disk,
        check_identity,
        check_java,
        check_namespace,
        check_ports,
        check_python,
        check_spark_home,
        check_workers,
    )
    from dlspark.sandbox.state import default_directory
    from metadata.foundation.plurals import counted

    place = directory or default_directory()
    findings = [
        *check_python(),
        *check_compiled(),
        *check_workers(),
        *check_java(),
        *check_spark_home(),
        *check_descriptors(),
        *check_ports(place),
        *check_disk(place),
        *check_clock(),
        *check_identity(),
        *check_namespace(uri),
    ]
    rows: list[Json] = [
        {"check": one.check, "verdict": one.verdict.value, "found": one.found, "todo": one.todo or None}
        for one in findings
    ]
    text = []
    for one in findings:
        text.append(f"{one.verdict.value:<5} {one.check}: {one.found}")
        text += [f"      {one.todo}"] if one.todo else []
    counts = {verdict: sum(one.verdict is verdict for one in findings) for verdict in CheckOutcome}
    failed, warned = counts[CheckOutcome.FAIL], counts[CheckOutcome.WARN]
    if failed or warned:
        text.append(f"{counted(failed, 'failure')}, {counted(warned, 'warning')}")
    else:
        text.append("nothing is wrong")
    result: dict[str, Json] = {"findings": rows, "failed": failed, "warned": warned}
    print_result(Output.JSON if as_json else output, result, text)
    exit_with(attention=failed > 0)
