"""The compiled core (`speed/`, distribution dlspark-speed): is it in use, and if not, why not?

It is optional: each function of it has a twin in Python, which does the same where `core` is None. Callers look at
`compiled.core` at each call, so that a test can run either.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from metadata.foundation.settings import FLAG

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    import numpy.typing as npt
    from _typeshed import ReadableBuffer, WriteableBuffer

    # numpy says only to checkers of Python 3.12 and later that its arrays are buffers.
    Readable: TypeAlias = ReadableBuffer | npt.NDArray[np.generic]
    Writable: TypeAlias = WriteableBuffer | npt.NDArray[np.generic]

_T = TypeVar("_T")


INTERFACE: Final = 2
"""What this dlspark was written for; the core has the same number in speed/src/lib.rs. One of another is not used."""
NO_SPEED: Final = "DLSPARK_NO_SPEED"
"""Environment variable; with 1 (yes, true, on) the core is not used though it is installed."""


class CompiledCore(Protocol):
    """The core's functions, as speed/dlspark_speed.pyi describes them."""

    def measure_records(self, contents: Sequence[Readable], hidden: int, /) -> tuple[int, int] | None:
        """Count records and their payload bytes."""
        ...

    def record_columns(
        self,
        contents: Sequence[Readable],
        entry_ids: Sequence[int],
        hidden: int,
        start_sequence_id: int,
        numbers: Sequence[Writable],
        offsets: Writable,
        payload: Writable,
        /,
    ) -> bool:
        """Write the columns of the records that were counted."""
        ...

    def make_records(
        self,
        kind: type[_T],
        fields: Sequence[object],
        segment: tuple[int, int],
        columns: Sequence[Readable],
        offsets: Readable,
        data: Readable,
        /,
    ) -> list[_T] | None:
        """Make an object of each row of columns."""
        ...

    def lay_out_records(self, headers: Readable, offsets: Readable, data: Readable, records: Writable, /) -> bool:
        """Write headers and payloads in turns."""
        ...

    def package_entry(
        self, digest_size: int, ids: tuple[int, int, int, int], payload: tuple[ReadableBuffer, ...], /
    ) -> bytes | None:
        """Make the header and digest of an entry."""
        ...

    def verify_entry(
        self, digest_size: int, ledger_id: int, entry_id: int | None, data: ReadableBuffer, /
    ) -> tuple[int, int, int] | None:
        """Check an entry against its digest and the ids that were asked for."""
        ...

    def append_adds(
        self, frames: list[memoryview], region: WriteableBuffer, place: int, /
    ) -> tuple[int, int, int, int, bytes, list[bytes], bytes, bytes] | None:
        """Write the entries of adds as records."""
        ...

    def encode_adds(
        self,
        digest_size: int,
        ids: tuple[int, int],
        fields: tuple[bytes, bytes, bytes],
        adds: Sequence[tuple[int, int, int, int, tuple[ReadableBuffer, ...]]],
        /,
    ) -> tuple[bytes, bytes, bytes, int] | None:
        """Package adds to one ledger; None for ids from 2^63 on, or other adds that the twin has to decide on."""
        ...

    def take_writes(
        self, frames: list[memoryview], first: int, longest: int, /
    ) -> tuple[bytes, list[int], list[bytes], int, bool] | None:
        """Take the writes of one record each that came together."""
        ...


_BUILD: Final = f"make speed builds one that fits; {NO_SPEED}=1 says it is not wanted"


def _load() -> tuple[CompiledCore | None, str, str]:
    """Return the core, or None; a sentence that says which and why; and what to do where that was not meant."""
    unwanted = os.environ.get(NO_SPEED, "").strip()
    said = f"pure Python: {NO_SPEED}={unwanted} is set"
    try:
        if unwanted and FLAG.read(unwanted):
            return None, said, ""
    except ValueError:
        return None, f"{said}, which is no word for yes or no", "Set it to 1 (yes, true, on) or 0 (no, false, off)"
    try:
        import dlspark_speed
    except ModuleNotFoundError:
        return None, "pure Python: dlspark-speed is not installed", ""
    except ImportError as error:
        return None, f"pure Python: dlspark-speed cannot be loaded ({error})", _BUILD
    found, version = getattr(dlspark_speed, "INTERFACE", None), getattr(dlspark_speed, "__version__", "of no version")
    if found != INTERFACE:
        return None, f"pure Python: dlspark-speed {version} has interface {found}, and this dlspark {INTERFACE}", _BUILD
    missing = [name for name in vars(CompiledCore) if name[0] != "_" and not hasattr(dlspark_speed, name)]
    if missing:
        return None, f"pure Python: dlspark-speed {version} has no {', '.join(missing)}: build it anew", _BUILD
    return dlspark_speed, f"the compiled core: dlspark-speed {version}, interface {found}", ""


core, said, todo = _load()
"""The core in use, None for pure Python; one sentence that says so and why; what to do where that was not meant."""
