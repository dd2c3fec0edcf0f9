"""Settings of cold storage: where a log's past goes, how soon, and how long each copy stays.

Two times pull in opposite directions. A lake table is as fresh as the newest file, and each file costs requests and an
entry in every catalogue, so a log cannot have one for each record. `coldFreshnessSeconds` settles it: a log's time is
cut into **slots** of a little less than that (`slot_length_s`; the rest is for copying). A writer completes its segment
when a slot ends, and a mover makes at most one file that is not full in a slot. With the default that is 300 files a
day, and no record waits longer than the setting says. Slots of different logs begin at different moments (`slot_of`),
or all logs of a namespace would roll at once.

Credentials never stand here: what is set here may be stored beside the log, for its readers.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from dlspark.core.settings.cold_mirrors import MirrorPlace, check_server_address, is_very_place, parse_mirrors
from dlspark.core.settings.log_setting import setting
from dlspark.errors import SettingsError
from dlspark.objects.addresses import FILE, S3, parse_root
from dlspark.objects.errors import ObjectAddressError
from metadata.foundation.settings import FLAG, TEXT, WHOLE

_COPY_SHARE: Final = 0.04
"""The part of coldFreshnessSeconds that is not waited: it is left for rolling, copying, reading back and the lake
table's commit. With 300 seconds a slot has 288, so a day has 300 slots."""
_COPY_S: Final = 3.0
_MOST_COPY_SHARE: Final = 0.1
"""At least so many seconds are left, for these steps do not get shorter with the setting: of 30 seconds 4% would be
1.2, and what is written as a slot begins would come late. But no more than this part of it."""
_FORMS: Final = "Give an absolute path, file:///path, s3://bucket/prefix or hdfs://host:port/path"


@dataclass(frozen=True)
class ColdKeys:
    """Cold storage"""

    cold_path: str = setting(
        TEXT,
        "",
        "coldStoragePath",
        "Where completed segments are moved to, as columnar files: an absolute path, file:///path, s3://bucket/prefix "
        "or hdfs://host:port/path; empty: nowhere. Readers find files by what is stored beside the log, so another "
        "value holds for new files only",
        own=True,
        dynamic=True,
    )
    cold_endpoint: str = setting(
        TEXT,
        "",
        "coldStorageEndpoint",
        "Address of an S3 server that is not Amazon's, or of HDFS's WebHDFS: http://host:port; it is recorded "
        "beside the log, for readers",
        own=True,
        dynamic=True,
    )
    cold_region: str = setting(
        TEXT,
        "",
        "coldStorageRegion",
        "Region of the bucket; empty: as the environment says. It is recorded beside the log, for readers",
        own=True,
        dynamic=True,
    )
    cold_mirror_places: str = setting(
        TEXT,
        "",
        "coldStorageMirrors",
        "Where copies of files may lie in other regions, for readers there: `us=s3://bucket-us/dl; "
        "asia=hdfs://host:port/dl`. Behind an address, with spaces, what its store needs: `endpoint=`, `region=` (of "
        "the bucket), `path-style=`, `encryption-key=`, `bucket-key=`. `dlspark cold mirror` and movers fill them, or "
        "the stores' own replication. They are recorded beside the log, for readers",
        own=True,
        dynamic=True,
    )
    cold_encryption_key: str = setting(
        TEXT,
        "",
        "coldStorageEncryptionKey",
        "Id of the key that the S3 server encrypts files with (SSE-KMS); empty: as the bucket says",
        own=True,
        dynamic=True,
    )
    cold_bucket_key: bool = setting(
        FLAG,
        True,
        "coldStorageBucketKey",
        "Whether the bucket's own key stands between coldStorageEncryptionKey and files, which saves requests to the "
        "key service",
        own=True,
        dynamic=True,
    )
    cold_target_bytes: int = setting(
        WHOLE,
        128 << 20,
        "coldTargetBytes",
        "Bytes of ledgers that fill a file: segments that come to so many are moved at once. A single larger segment "
        "makes a larger file",
        minimum=1,
        maximum=8 << 30,
        own=True,
        dynamic=True,
    )
    cold_max_delay_s: int = setting(
        WHOLE,
        3600,
        "coldMaxDelaySeconds",
        "Seconds that a completed segment waits at most for others to fill its file, where coldFreshnessSeconds does "
        "not move it sooner; below a slot of it (90 to 96%) there are more than one file a slot",
        minimum=1,
        own=True,
        dynamic=True,
    )
    cold_freshness_s: int = setting(
        WHOLE,
        300,
        "coldFreshnessSeconds",
        "Seconds after which a record is in a cold file, and a lake table shows it: writers complete their segments in "
        "time, and movers make one file in this time; 0: segments end as logSegmentRollingMinutes says, and wait "
        "coldMaxDelaySeconds",
        minimum=0,
        own=True,
        dynamic=True,
    )
    cold_hot_retention_s: int = setting(
        WHOLE,
        14_400,
        "coldHotRetentionSeconds",
        "Seconds for which storage nodes keep a segment that has its file; -1: for ever. The newest completed segment "
        "always stays",
        minimum=-1,
        own=True,
        dynamic=True,
    )
    cold_retention_hours: int = setting(
        WHOLE,
        -1,
        "coldRetentionHours",
        "Hours after a segment's end for which its file is kept; -1: for ever. Where coldStoragePath is set, this "
        "takes the place of logSegmentRetentionHours",
        minimum=-1,
        own=True,
        dynamic=True,
    )

    @property
    def cold_root(self) -> str:
        """The address that those of all files begin with: coldStoragePath with its scheme, without a slash at the end;
        empty where cold storage is off."""
        return cold_root(self.cold_path)

    @property
    def cold_options(self) -> dict[str, str]:
        """What readers need beside a file's address, to be recorded with it."""
        given = {"endpoint": self.cold_endpoint, "region": self.cold_region}
        return {key: value for key, value in given.items() if value}

    @property
    def cold_write_options(self) -> dict[str, str]:
        """What those who write files need: what readers do, and how files are encrypted."""
        options = self.cold_options
        if self.cold_encryption_key:
            options["encryption-key"] = self.cold_encryption_key
            options["bucket-key"] = str(self.cold_bucket_key).lower()
        return options

    @property
    def cold_mirrors(self) -> tuple[MirrorPlace, ...]:
        """Where copies of files go, in the order given."""
        return parse_mirrors(self.cold_mirror_places)

    @property
    def cold_slot_s(self) -> float:
        """Seconds of one slot; 0 where files are not bound to slots."""
        return slot_length_s(self.cold_freshness_s) if self.cold_path else 0.0

    def _check_cold(self) -> None:
        """Raise SettingsError for values that cannot all be honoured."""
        scheme = cold_root(self.cold_path).partition(":")[0]
        self._check_cold_server("coldStorageEndpoint", self.cold_endpoint, scheme == FILE, "a folder has no server")
        for key, value in (
            ("coldStorageRegion", self.cold_region),
            ("coldStorageEncryptionKey", self.cold_encryption_key),
        ):
            self._check_cold_server(key, value, scheme not in ("", S3), "it is no S3 bucket")
        if self.cold_endpoint:
            check_server_address("coldStorageEndpoint", self.cold_endpoint)
        self._check_mirrors()
        self._check_cold_times()

    def _check_mirrors(self) -> None:
        mirrors = self.cold_mirrors
        if mirrors and not self.cold_path:
            raise SettingsError(
                "coldStorageMirrors is set, and coldStoragePath is not: there are no files to copy",
                advice="Set coldStoragePath, too",
            )
        for mirror in mirrors:
            if is_very_place(mirror.noted, self.cold_root, self.cold_options):
                raise SettingsError(
                    f"coldStorageMirrors: that of region {mirror.region} is the place of the files themselves, "
                    f"coldStoragePath={self.cold_path}",
                    advice="Leave it out: readers of a region without a mirror read there",
                )

    def _check_cold_server(self, key: str, value: str, refused: bool, why: str) -> None:
        if value and refused:
            raise SettingsError(
                f"{key}={value} means nothing for coldStoragePath={self.cold_path}: {why}",
                advice=f"Set {key} to nothing, or coldStoragePath to s3://bucket/prefix",
            )

    def _check_cold_times(self) -> None:
        if self.cold_retention_hours == 0:
            raise SettingsError(
                "coldRetentionHours=0 would delete each file as soon as it is made",
                advice="Set -1 to keep files for ever, or hours",
            )
        if self.cold_retention_hours < 0:
            return
        if self.cold_hot_retention_s < 0:
            raise SettingsError(
                f"coldRetentionHours={self.cold_retention_hours} deletes no file while coldHotRetentionSeconds=-1 "
                "keeps every hot copy: the hot copy goes first",
                advice="Set coldHotRetentionSeconds, too, or coldRetentionHours=-1",
            )
        if self.cold_retention_hours * 3600 <= self.cold_hot_retention_s:
            raise SettingsError(
                f"coldRetentionHours={self.cold_retention_hours} is not longer than "
                f"coldHotRetentionSeconds={self.cold_hot_retention_s}, so files would go before the hot copies",
                advice="Raise the first or lower the second",
            )


def slot_length_s(freshness_s: float) -> float:
    """Return the seconds of one slot of this freshness."""
    return freshness_s - max(_COPY_SHARE * freshness_s, min(_COPY_S, _MOST_COPY_SHARE * freshness_s))


def slot_of(log_name: str, slot_s: float, now_ms: int) -> int:
    """Return the number of the slot that a moment lies in, milliseconds since the epoch.

    The slots of one log begin somewhere between two of any other, by its name: deterministic, so that its writers and
    its movers agree on them without a word.
    """
    length_ms = max(1, round(slot_s * 1000))
    return (now_ms - zlib.crc32(log_name.encode()) % length_ms) // length_ms


def slot_start_ms(log_name: str, slot_s: float, slot: int) -> int:
    """Return when a slot begins, milliseconds since the epoch."""
    length_ms = max(1, round(slot_s * 1000))
    return slot * length_ms + zlib.crc32(log_name.encode()) % length_ms


def cold_root(path: str) -> str:
    """Return coldStoragePath as the beginning of addresses. Raises SettingsError for one that is no place for files."""
    if not path:
        return ""
    try:
        return parse_root(path).url
    except ObjectAddressError as error:
        # The value is not repeated: it may hold a password.
        raise SettingsError(f"coldStoragePath: {error.message}", advice=error.advice or _FORMS) from error
