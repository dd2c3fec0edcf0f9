"""`OtherSpark`: the Spark of another environment, with Iceberg's own runtime, to which SQL is said line by line."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any, Final

from dlspark.testing.java_process import class_path_of
from metadata.foundation.processes import ending_with_parent

ANSWER_S: Final = 300
"""For one statement; the first one fetches Iceberg's runtime, and starts a JVM."""
HERE: Final = Path(__file__).parent / "iceberg"


class OtherSpark:
    """How does another Spark answer?

    Args:
        python: of the environment that it is in.
        folder: of the test: its lake is `lake`, with the catalog `catalog.db`.
    """

    def __init__(self, python: str, folder: Path) -> None:
        self._log = (folder / "spark.log").open("wb")
        command = [python, str(HERE / "spark_session.py"), class_path_of(HERE / "pom.xml")]
        command += [f"{folder}/lake/catalog.db", f"file://{folder}/lake"]
        self._process = subprocess.Popen(
            ending_with_parent(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**{key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK"))}},
            text=True,
        )
        try:
            self.version = self._answer("ready ")
        except BaseException:
            self.stop()
            raise

    def _answer(self, prefix: str) -> str:
        assert self._process.stdout is not None
        # One that hangs is ended, so that the reading below ends too.
        watch = threading.Timer(ANSWER_S, self._process.kill)
        watch.start()
        try:
            for line in self._process.stdout:
                if line.startswith(prefix):
                    return line.removeprefix(prefix).strip()
        finally:
            watch.cancel()
        said = Path(self._log.name).read_text("utf-8", "replace")[-3000:]
        raise AssertionError(f"Spark has ended, or has not answered within {ANSWER_S} s: {said}")

    def ask(self, statement: str) -> Any:
        """Return the rows of a statement, or what is wrong with it: `{"error": ...}`."""
        assert self._process.stdin is not None
        print(statement, file=self._process.stdin, flush=True)
        return json.loads(self._answer("answer "))

    def stop(self) -> None:
        """End it."""
        try:
            self._process.communicate(timeout=60)
        finally:
            self._process.kill()
            self._process.wait()
            self._log.close()
