"""Tables for rounds of faults, each behind the same words: what opens one through lies, and what shows it as it is.

SqliteTable     Iceberg in a folder; a `LyingCatalog` before a catalog of SQLite
DeltaFolder     Delta in a folder; a `LyingDelta`
RestTable       Iceberg on S3, behind an Iceberg REST catalog; a `FaultProxy` before the catalog
DeltaOnS3       Delta on S3; a `FaultProxy` before the store
"""

from __future__ import annotations

import random
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.utils.config import Config

from dlspark.cold.lake.iceberg import IcebergTable
from dlspark.cold.lake.opening import open_table
from dlspark.cold.lake.targets import LakeTable
from helpers.cold.fault_proxy import FaultPlan, HttpFault, running_proxy
from helpers.cold.lake_worlds import Liar, LyingCatalog, LyingDelta
from helpers.cold.proxy_process import proxy_process
from helpers.cold.servers import ACCESS_KEY, BUCKET, KEYS, LAKE, REGION, SECRET_KEY, S3Server
from metadata.distributedlog.cold_tables import DELTA, ICEBERG, ColdTable, table_logs

LYING: Final = 0.5
"""How many of all commits are lied about."""
Snapshots = list[tuple[list[str], int]]
"""Of each snapshot, oldest first: the files that it names, and the rows that it says."""


class RoundTable(ABC):
    """Which table does a round work at?"""

    table: ColdTable

    def open(self, table: ColdTable) -> LakeTable:
        """Open it as a sync does, with lies in between."""
        return open_table(table)

    @abstractmethod
    def snapshots(self) -> Snapshots:
        """Return what it has, and had, as it is."""

    @abstractmethod
    def rows(self) -> int:
        """Read it whole, and return how many rows there are."""

    @abstractmethod
    def stop(self) -> None:
        """Let what is late arrive, and lie no more."""

    @property
    @abstractmethod
    def told(self) -> Counter[str]:
        """How many commits were lied about, by kinds of lies."""


class _Iceberg(RoundTable):
    catalog: Catalog

    def __init__(self) -> None:
        # Manifests never change, and each is in many snapshots.
        self._manifests: dict[str, list[tuple[str, int]]] = {}

    def snapshots(self) -> Snapshots:
        try:
            table = self.catalog.load_table(self.table.identifier)
        except NoSuchTableError:
            return []
        found = []
        for one in table.snapshots():
            assert one.summary is not None
            files = [file for manifest in one.manifests(table.io) for file in self._files(manifest, table.io)]
            rows = int(one.summary["total-records"] or 0)
            assert rows == sum(count for _, count in files), "what a snapshot says, and what its manifests say"
            found.append(([path for path, _ in files], rows))
        return found

    def _files(self, manifest: ManifestFile, io: FileIO) -> list[tuple[str, int]]:
        """Return the files that a manifest names, and their rows."""
        known = self._manifests.get(manifest.manifest_path)
        if known is None:
            entries = [entry.data_file for entry in manifest.fetch_manifest_entry(io)]
            known = self._manifests[manifest.manifest_path] = [(one.file_path, one.record_count) for one in entries]
        return known

    def rows(self) -> int:
        return len(self.catalog.load_table(self.table.identifier).scan(selected_fields=("_error",)).to_arrow())


class SqliteTable(_Iceberg):
    """Iceberg in a folder."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        super().__init__()
        self._liar = Liar(rng, LYING)
        place, options = f"sqlite:///{folder}/catalog.db", {"warehouse": f"file://{folder}/lake"}
        self.table = ColdTable("flights", "id", ICEBERG, place, "air.flights", table_logs(["flights"]), options)
        self.catalog = load_catalog("c", type="sql", uri=place, **options)

    def open(self, table: ColdTable) -> LakeTable:
        catalog: Any = LyingCatalog(self.catalog, self._liar)
        return IcebergTable(catalog, table.identifier, table.id, table.grouped)

    def stop(self) -> None:
        self._liar.settle()
        self._liar.rate = 0

    @property
    def told(self) -> Counter[str]:
        return self._liar.told


class DeltaFolder(RoundTable):
    """Delta in a folder."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._liar = Liar(rng, LYING)
        self.table = ColdTable("flights", "id", DELTA, f"{folder}/table", "", table_logs(["flights"]))

    def open(self, table: ColdTable) -> LakeTable:
        found = LyingDelta(table.place, table.id, table.grouped, table.options)
        found.liar = self._liar
        return found

    def snapshots(self) -> Snapshots:
        found = []
        for version in range(self._at(None).version() + 1):
            actions = pa.table(self._at(version).get_add_actions(flatten=True)).to_pylist()
            found.append(([one["path"] for one in actions], sum(one["num_records"] for one in actions)))
        return found

    def rows(self) -> int:
        return len(pa.table(self._at(None).scan(columns=["_error"]).read_all()))

    def _at(self, version: int | None) -> DeltaTable:
        return DeltaTable(self.table.place, version=version)

    def stop(self) -> None:
        self._liar.settle()
        self._liar.rate = 0

    @property
    def told(self) -> Counter[str]:
        return self._liar.told


class DeltaOnS3(RoundTable):
    """Delta on S3, below a prefix of its own; by `repeats`, deltalake repeats requests as it does, or never."""

    def __init__(self, server: S3Server, rng: random.Random, stack: ExitStack, repeats: bool) -> None:
        plan = lying_plan(rng, r"^PUT \S+/_delta_log/")
        self._proxy = stack.enter_context(proxy_process(server.endpoint, plan))
        options = {"region": REGION, "allow_http": "true"}
        self._own = {**options, "endpoint": server.endpoint}
        declared = {**options, "endpoint": self._proxy.endpoint, **({} if repeats else {"max_retries": "0"})}
        place = f"s3://{BUCKET}/tables/{uuid.uuid4().hex}"
        self.table = ColdTable("flights", "id", DELTA, place, "", table_logs(["flights"]), declared)
        self._known: Snapshots = []

    def snapshots(self) -> Snapshots:
        last = self._at(None).version()
        # A version never changes: `stop` has all of them read again, and compared.
        self._known += [self._version(at) for at in range(len(self._known), last + 1)]
        return self._known

    def _version(self, at: int) -> tuple[list[str], int]:
        actions = pa.table(self._at(at).get_add_actions(flatten=True)).to_pylist()
        return [one["path"] for one in actions], sum(one["num_records"] for one in actions)

    def rows(self) -> int:
        return len(pa.table(self._at(None).scan(columns=["_error"]).read_all()))

    def _at(self, version: int | None) -> DeltaTable:
        return DeltaTable(self.table.place, version=version, storage_options=self._own)

    def stop(self) -> None:
        self._proxy.stop_faults()
        former, self._known = self._known, []
        assert self.snapshots()[: len(former)] == former, "a version has become another one"

    @property
    def told(self) -> Counter[str]:
        return by_name(self._proxy.met())


def lying_plan(rng: random.Random, only: str) -> FaultPlan:
    """Return a plan by which about LYING of the requests that match meet a fault, of all kinds."""
    faults = [one for one in HttpFault if one is not HttpFault.DELAY]
    # Each is drawn by itself, in order.
    each = float(1 - (1 - LYING) ** (1 / len(faults)))
    return FaultPlan(rng, dict.fromkeys(faults, each), only)


def by_name(met: Counter[HttpFault]) -> Counter[str]:
    """Return how often faults were met, by their names."""
    return Counter({fault.name: count for fault, count in met.items()})


class RestTable(_Iceberg):
    """Iceberg on S3, in a namespace of its own of a REST catalog."""

    def __init__(self, server: S3Server, rng: random.Random, stack: ExitStack) -> None:
        super().__init__()
        self._proxy = stack.enter_context(running_proxy(server.catalog, lying_plan(rng, r"^POST \S+/tables")))
        name, options = f"n{uuid.uuid4().hex}.flights", rest_options(server)
        self.table = ColdTable("flights", "id", ICEBERG, self._proxy.endpoint, name, table_logs(["flights"]), options)
        self.catalog = load_catalog("c", type="rest", uri=server.catalog, credential=CREDENTIAL, **options)
        stack.callback(self.catalog.close)

    def stop(self) -> None:
        self._proxy.plan.stop()
        self._proxy.settle()

    @property
    def told(self) -> Counter[str]:
        return by_name(self._proxy.plan.met)


CREDENTIAL: Final = f"{ACCESS_KEY}:{SECRET_KEY}"


def rest_options(server: S3Server) -> dict[str, str]:
    """Return what a declaration says of a REST catalog of the tests."""
    return {
        "warehouse": f"s3://{LAKE}/",
        "s3.endpoint": server.endpoint,
        "s3.region": REGION,
        "oauth2-server-uri": f"{server.catalog}/v1/oauth/tokens",
        "s3.force-virtual-addressing": "false",
    }


def use_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the keys of the tests' servers to this process: to S3 clients, and to catalogs that are known by address."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYICEBERG_CATALOG__DLSPARK__CREDENTIAL", CREDENTIAL)
    # pyiceberg reads its environment once, when it is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


@contextmanager
def round_table(kind: str, folder: Path, rng: random.Random, server: S3Server | None) -> Iterator[RoundTable]:
    """Yield a table that is not made yet, of the kind `iceberg`, `delta`, `rest` or `delta_s3`."""
    with ExitStack() as stack:
        if kind == "iceberg":
            found = SqliteTable(folder, rng)
            stack.callback(found.catalog.close)
            yield found
        elif kind == "delta":
            yield DeltaFolder(folder, rng)
        else:
            assert server is not None
            if kind == "rest":
                yield RestTable(server, rng, stack)
            else:
                yield DeltaOnS3(server, rng, stack, repeats=rng.random() < 0.5)
