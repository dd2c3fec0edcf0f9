"""Settings as every floor has them: key, kind, bounds and unit; how a value is read; the page that lists it.

The settings of a room are the fields of a frozen dataclass. Beside each field stands its `Setting`:

    journal_max_size_mb: int = setting(WHOLE, 256, "journalMaxSizeMB", "Size at which ...", minimum=16, maximum=65536)

A `Registry` has a room's settings by key. It reads values, checks them, and refuses a key that it does not know with
the nearest one that it does: a setting never silently does nothing. Files, environment variables and options all hand
over texts, which are read in one way for all rooms:

| kind | text |
|---|---|
| FLAG | `true`, `yes`, `on`, `1` or `false`, `no`, `off`, `0`, in any case |
| WHOLE | decimal digits, perhaps with a sign |
| REAL | a decimal number, perhaps with an exponent; neither `nan` nor `inf` |
| TEXT | without the spaces around it |
| EXACT | as it stands: a password |
| WORDS | words separated by commas, without the spaces around them |

Pages for people (`properties_page`, `markdown_table`) are made from the same declarations.
"""

from __future__ import annotations

import difflib
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Final, Generic, TypeAlias, TypeVar, overload

from metadata.foundation.errors import CallerError, DistributedLogError, check

T = TypeVar("T")

Value: TypeAlias = bool | int | float | str
"""The values that a mapping of settings may hold: texts, as files have them, or values of the setting's own type."""

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1
_MAX_SHOWN: Final = 120
_PAGE_WIDTH: Final = 120

_TRUE: Final = frozenset(("true", "yes", "on", "1"))
_FALSE: Final = frozenset(("false", "no", "off", "0"))
_TAG: Final = re.compile(r"`[^`]*`|<")
"""A `<`, which begins a tag; or code, in which none begins."""
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}")
_REAL: Final = re.compile(r"[+-]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][+-]?[0-9]{1,3})?")


class UnreadableValue(ValueError):
    """Why is a text not a value of its kind? The message says so, where there is more to say than that."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """How is a value of one type read? `read` takes a text and `take` any other value; both raise ValueError for a
    value of another kind, and UnreadableValue where they can say why.
    """

    words: str
    """The words in which an error asks for one: "a whole number"."""
    read: Callable[[str], T]
    take: Callable[[object], T]


def _read_flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(text)
    return word in _TRUE


def _take_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(value)
    return value


def _read_whole(text: str) -> int:
    word = text.strip()
    if not _WHOLE.fullmatch(word):
        raise ValueError(text)
    return int(word)


def _take_whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    return value


def _read_real(text: str) -> float:
    word = text.strip()
    if not _REAL.fullmatch(word):
        raise ValueError(text)
    return _take_real(float(word))


def _take_real(value: object) -> float:
    # To Python a bool is an int; a setting of true is not one of 1.
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(value)
    return float(value)


def _take_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _read_words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _take_words(value: object) -> tuple[str, ...]:
    if not isinstance(value, tuple | list) or not all(isinstance(word, str) for word in value):
        raise ValueError(value)
    return tuple(value)


FLAG: Final[Kind[bool]] = Kind("true or false", _read_flag, _take_flag)
WHOLE: Final[Kind[int]] = Kind("a whole number", _read_whole, _take_whole)
REAL: Final[Kind[float]] = Kind("a number", _read_real, _take_real)
TEXT: Final[Kind[str]] = Kind("text", str.strip, _take_text)
EXACT: Final[Kind[str]] = Kind("text", str, _take_text)
WORDS: Final[Kind[tuple[str, ...]]] = Kind("words separated by commas", _read_words, _take_words)


@dataclass(frozen=True, slots=True)
class Setting:
    """Which key, kind, bounds and meaning has a setting? Packages that know more of theirs add fields in a subclass."""

    kind: Kind[object]
    key: str
    """Its name in files: upstream's, unless `own`."""
    meaning: str
    """One or more sentences without the last full stop, which say the unit."""
    minimum: float | None = None
    """Inclusive, in the field's unit; so is `maximum`."""
    maximum: float | None = None
    scale: int = 1
    """The field is this many times what the key says: 1,000 for a key in seconds and a field in milliseconds."""
    choices: tuple[str, ...] = ()
    """The texts that it takes, in any case; empty: any."""
    other_keys: tuple[str, ...] = ()
    """Names that are understood as well, older ones mostly."""
    own: bool = False
    """Not one of upstream's keys."""
    secret: bool = False
    """Its value is shown nowhere: not by `repr`, and not in an error. This is the one place that says so."""
    section: str = ""
    """Title of the group of settings that begins with this one, on pages."""


def declared(info: Setting, default: object) -> object:
    """Return the dataclass field of a setting; a `default` of `MISSING` makes it one that has to be given."""
    metadata = {"setting": info}
    if default is MISSING:
        return field(repr=not info.secret, metadata=metadata)
    made: object = field(default=default, repr=not info.secret, metadata=metadata)
    return made


@overload
def setting(
    kind: Kind[T],
    default: T,
    key: str,
    meaning: str,
    *,
    minimum: float | None = ...,
    maximum: float | None = ...,
    scale: int = ...,
    choices: tuple[str, ...] = ...,
    other_keys: tuple[str, ...] = ...,
    own: bool = ...,
    secret: bool = ...,
    section: str = ...,
) -> T: ...


@overload
def setting(
    kind: Kind[T],
    default: None,
    key: str,
    meaning: str,
    *,
    minimum: float | None = ...,
    maximum: float | None = ...,
) -> T | None: ...


def setting(
    kind: Kind[T],
    default: T | None,
    key: str,
    meaning: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    scale: int = 1,
    choices: tuple[str, ...] = (),
    other_keys: tuple[str, ...] = (),
    own: bool = False,
    secret: bool = False,
    section: str = "",
) -> object:
    """Return a field with its setting. A default of None: not set; what follows from that is the room's to decide."""
    info = Setting(kind, key, meaning, minimum, maximum, scale, choices, other_keys, own, secret, section)  # type: ignore[arg-type]
    return declared(info, default)


def required(kind: Kind[T], key: str, meaning: str, *, other_keys: tuple[str, ...] = (), section: str = "") -> T:
    """Return a field without a default, with its setting."""
    info = Setting(kind, key, meaning, other_keys=other_keys, section=section)  # type: ignore[arg-type]
    return declared(info, MISSING)  # type: ignore[return-value]


def settings_of(owner: type) -> dict[str, Setting]:
    """Return the settings among a dataclass's fields, by the field's name, in their order."""
    return {item.name: item.metadata["setting"] for item in fields(owner) if "setting" in item.metadata}


def defaults_of(owner: type) -> dict[str, object]:
    """Return the defaults of those that have one, by key and as it is written there, so in the key's unit."""
    found: dict[str, object] = {}
    for item in fields(owner):
        info: Setting | None = item.metadata.get("setting")
        if info is not None and item.default is not MISSING:
            default: object = item.default
            found[info.key] = default // info.scale if isinstance(default, int) and info.scale != 1 else default
    return found


def shown(value: object) -> str:
    """Return a user's value as it stands in an error, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text):,} characters)"


def read_value(info: Setting, key: str, value: object, error: type[DistributedLogError]) -> object:
    """Return a value, given under the name `key`, in the field's type and unit. Raises `error` for what is not one."""
    try:
        if isinstance(value, str):
            converted = info.kind.read(value.strip().lower() if info.choices else value)
        else:
            converted = info.kind.take(value)
    except ValueError as refused:
        said = f"the value of {key}" if info.secret else f"{key}={shown(value)}"
        why = f"; {refused}" if isinstance(refused, UnreadableValue) else ""
        # Without the cause, whose message holds the value: it may be a secret.
        raise error(f"{said} is not {info.kind.words}{why}", advice=f"{key}: {info.meaning}") from None
    if isinstance(converted, int) and info.scale != 1:
        converted *= info.scale
    _check_value(info, key, converted, error)
    return converted


def _check_value(info: Setting, key: str, value: object, error: type[DistributedLogError]) -> None:
    if info.choices and value not in info.choices:
        advice = f"{did_you_mean(str(value), info.choices)}{info.meaning}"
        raise error(f"{key}={shown(value)} is not one of {', '.join(filter(None, info.choices))}", advice=advice)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low = -math.inf if info.minimum is None else info.minimum
    high = math.inf if info.maximum is None else info.maximum
    if not low <= value <= high:  # not by two comparisons: nan is out of bounds
        said = f"{value / info.scale:g}" if info.scale != 1 or isinstance(value, float) else str(value)
        raise error(f"{key}={said} is outside {_bound(low, info)}..{_bound(high, info)}", advice=info.meaning)


class Registry:
    """Which setting does a key name, and is its value one? The settings of some dataclasses, by key.

    Args:
        owners: the dataclasses.
        error: the type of its errors, which takes a message and `advice`.
        page: where people find all keys.
        refused: upstream's keys that would do nothing here, and why.
    """

    def __init__(
        self,
        owners: Sequence[type],
        error: type[DistributedLogError],
        *,
        page: str,
        refused: Mapping[str, str] | None = None,
    ) -> None:
        """Register these settings. `page` is where people find all keys. `refused`: upstream's keys that would do
        nothing here, and why.
        """
        self._error = error
        self._page = page
        self._refused = refused or {}
        self._names: dict[str, tuple[type, str, Setting]] = {}
        for owner in owners:
            for name, info in settings_of(owner).items():
                for key in (info.key, *info.other_keys):
                    check(key not in self._names, "two settings have one key")
                    self._names[key] = owner, name, info

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def __iter__(self) -> Iterator[str]:
        """Return all keys that are understood, other names of one setting included."""
        return iter(self._names)

    def find(self, key: str) -> tuple[type, str, Setting]:
        """Return the dataclass, the name of the field and the setting of a key. Raises the registry's error, with the
        nearest key or the reason."""
        found = self._names.get(key)
        if found is not None:
            return found
        reason = self._refused.get(key)
        if reason is not None:
            raise self._error(f"the setting {key} has no effect here: {reason}", advice="Remove it")
        raise self._error(f"there is no setting {shown(key)}", advice=nearest(key, self._names, self._page))

    def reason_against(self, key: str) -> str | None:
        """Return why a key of upstream's would do nothing here; None for one that is understood, or unknown."""
        return None if key in self._names else self._refused.get(key)

    def read(self, key: str, value: object) -> object:
        """Return a value in the field's type and unit. Raises the registry's error for what is not one, or out of
        bounds."""
        return read_value(self.find(key)[2], key, value, self._error)

    def read_all(self, values: Mapping[str, object]) -> dict[type, dict[str, object]]:
        """Return all values, by dataclass and name of the field: what to make the dataclasses with. Raises the
        registry's error, also where one setting is given under two names."""
        made: dict[type, dict[str, object]] = {}
        for key, value in values.items():
            owner, name, info = self.find(key)
            if name in made.setdefault(owner, {}):
                raise self._error(f"{info.key} is given twice, once as {key}", advice="Keep one of them")
            made[owner][name] = self.read(key, value)
        return made

    def check(self, settings: object) -> None:
        """Raise the registry's error for a field of a dataclass that is out of bounds, or none of the choices."""
        for name, info in settings_of(type(settings)).items():
            value = getattr(settings, name)
            if value is not None:
                _check_value(info, info.key, value, self._error)


def values_given(texts: Iterable[str]) -> dict[str, str]:
    """Return the settings that options `--set key=value` give, by key. Raises CallerError for a text without '='."""
    given: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise CallerError(f"--set {text!r} sets nothing", advice="Write --set key=value")
        given[key.strip()] = value
    return given


def _bound(limit: float, info: Setting) -> str:
    if math.isinf(limit):
        return ""
    return str(math.ceil(limit / info.scale)) if info.scale != 1 else str(limit)


def nearest(key: str, known: Iterable[str], page: str) -> str:
    """Return the advice for a key that is unknown: the one that was meant, perhaps, and where all of them are."""
    return f"{did_you_mean(key, known)}{page} lists all settings"


def near_word(word: str, known: Iterable[str]) -> str | None:
    """Return the one of the `known` words that was perhaps meant by another one; its capitals do not count."""
    folded = {one.lower(): one for one in known}
    close = difflib.get_close_matches(word.strip().lower(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return how advice begins for a word that is none of the `known` ones; empty where none of them is near."""
    near = near_word(word, known)
    return "" if near is None else f"Did you mean {near}? "


def written(value: object) -> str:
    """Return a value as a properties file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def properties_entry(comment: str, key: str, value: object) -> str:
    """Return a setting in a properties file for people: its meaning, then its key and value; None is written as a
    comment."""
    lines = textwrap.wrap(comment, _PAGE_WIDTH - 2, break_long_words=False, break_on_hyphens=False)
    head = "".join(f"# {line}\n" for line in lines)
    return f"{head}#{key}=\n" if value is None else f"{head}{key}={written(value)}\n"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table. Cells are Markdown already; what would end a cell, or begin a tag outside of code, is
    escaped."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(map(_cell, row))} |"


def _cell(text: str) -> str:
    return _TAG.sub(lambda found: "&lt;" if found[0] == "<" else found[0], text).replace("|", "\\|")
