"""`coldStorageMirrors`: places in other regions where copies of cold files may lie.

    us=s3://bucket-us/dl region=us-east-2; asia=hdfs://asia-nn:9000/dl endpoint=http://asia-nn:9870

A mirror is one region's, and its address is a root as `coldStoragePath`'s, with what its store needs behind it. There
is nothing to set for the region of `coldStoragePath` itself: readers of a region that has no mirror read there, so its
name would change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from dlspark.errors import SettingsError
from dlspark.objects.addresses import FILE, parse_root, same_folder
from dlspark.objects.errors import ObjectAddressError
from dlspark.objects.opening import OPTIONS
from metadata.distributedlog.cold_places import ColdMirror
from metadata.foundation.errors import CallerError
from metadata.foundation.regions import region_named

KEY: Final = "coldStorageMirrors"
_OF_WRITERS: Final = frozenset({"encryption-key", "bucket-key"})
"""Options that are not recorded: they say how new copies are encrypted, and no reader needs them."""
_FORM: Final = "Give region=address, with semicolons between mirrors: us=s3://bucket-us/dl region=us-east-2"


@dataclass(frozen=True, slots=True)
class MirrorPlace:
    """Where do copies for one region go?

    Args:
        region: whose readers take them first.
        root: the address that those of all copies begin with.
        write_options: what those need who make copies: what readers do, and how copies are encrypted.
    """

    region: str
    root: str
    write_options: Mapping[str, str]

    @property
    def noted(self) -> ColdMirror:
        """The mirror as it is recorded beside a log."""
        return ColdMirror(self.region, self.root, noted_options(self.write_options))


def noted_options(write_options: Mapping[str, str]) -> dict[str, str]:
    """Return those of a writer's options that are recorded beside a log: what readers need."""
    return {key: value for key, value in write_options.items() if key not in _OF_WRITERS}


def parse_mirrors(text: str) -> tuple[MirrorPlace, ...]:
    """Return the mirrors that are listed. Raises SettingsError for what is none, two of one region, or one place
    twice."""
    found: list[MirrorPlace] = []
    for part in text.split(";"):
        if part.strip():
            one = _parse_one(part.split())
            _check_new(one, found)
            found.append(one)
    return tuple(found)


def is_very_place(mirror: ColdMirror, root: str, options: Mapping[str, str]) -> bool:
    """Return whether a mirror is that place: by its address, or as the same folder of this host under another name."""
    return mirror.same_place(root, options) or (root.startswith(f"{FILE}:") and same_folder(mirror.root, root))


def check_server_address(key: str, address: str) -> None:
    """Raise SettingsError unless what is set under `key` is the address of a store's server."""
    parts = urlsplit(address)
    if "@" in parts.netloc:
        # The value is not repeated: it holds a password.
        raise SettingsError(
            f"{key} has a name or password before its '@', and it is stored for every reader",
            advice="Take it out; credentials come from the environment",
        )
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise SettingsError(f"{key}={address} is no address", advice="Give http://host:port or https://host")


def _parse_one(words: list[str]) -> MirrorPlace:
    region, equals, address = words[0].partition("=")
    if not region or not equals or not address:
        raise SettingsError(f"{KEY}: one of the mirrors is no region with its address", advice=_FORM)
    try:
        region_named(region, KEY)
    except CallerError as error:
        raise SettingsError(error.message, advice=error.advice) from error
    try:
        root = parse_root(address)
    except ObjectAddressError as error:
        # The value is not repeated: it may hold a password.
        raise SettingsError(f"{KEY}, region {region}: {error.message}", advice=error.advice or _FORM) from error
    options: dict[str, str] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or not value or key in options or key not in OPTIONS[root.scheme]:
            known = ", ".join(sorted(OPTIONS[root.scheme])) or "none"
            raise SettingsError(
                f"{KEY}, region {region}: {key!r} is no option of {root.scheme}://, has no value, or is given twice",
                advice=f"Options of {root.scheme}:// are: {known}; give them as key=value, with spaces between them",
            )
        options[key] = value
    if "endpoint" in options:
        check_server_address(f"{KEY}, region {region}: endpoint", options["endpoint"])
    if "bucket-key" in options and "encryption-key" not in options:
        raise SettingsError(
            f"{KEY}, region {region}: bucket-key does nothing without encryption-key",
            advice="Give encryption-key, or leave bucket-key out",
        )
    return MirrorPlace(region, root.url, options)


def _check_new(one: MirrorPlace, others: list[MirrorPlace]) -> None:
    for other in others:
        if other.region == one.region:
            raise SettingsError(
                f"{KEY} has two mirrors of region {one.region}; readers would take one of them alone",
                advice="Leave one of them out",
            )
        if is_very_place(other.noted, one.root, one.noted.options):
            raise SettingsError(
                f"{KEY}: regions {other.region} and {one.region} have the same place, {one.root}",
                advice="Leave one of them out, or give it a place of its own",
            )
