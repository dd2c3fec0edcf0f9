"""Settings of segments: the metadata that writers give them, what of it is read, and how their ends are found."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.keys import flag, number


@dataclass(frozen=True)
class SegmentKeys:
    """Segments"""

    metadata_version: int = number(
        5,
        "ledgerMetadataLayoutVersion",
        "Version of the segments that writers start; below 4 entries have no envelope and cannot be compressed, below "
        "5 records have no sequence ids. Version 1, which has no segment numbers, is read, not written",
        minimum=2,
        maximum=5,
        old_key="ledger-metadata-layout",
    )
    skip_minimum_version: bool = flag(
        False,
        "ledgerMetadataSkipMinVersionCheck",
        "Whether segments of version 1 are read",
        per_log=False,
    )
    validate_sequence: bool = flag(
        True,
        "logSegmentSequenceNumberValidationEnabled",
        "Whether a log is refused where a segment between two others is missing",
        per_log=False,
    )
    segment_name_version: int = number(
        1,
        "logSegmentNameVersion",
        "How segments are called in the metadata store: 1 by their numbers; 0 by transaction ids, as old libraries "
        "did, which fails where two segments have the same",
        minimum=0,
        maximum=1,
    )
    encode_region_id: bool = flag(
        False,
        "encodeRegionIDInVersion",
        "Whether segments name the region of their writer; also if the namespace's binding says so",
    )
    first_scan_entries: int = number(
        2,
        "firstNumEntriesEachPerLastRecordScan",
        "Entries read first where a segment's last record is looked for; doubled from one read to the next",
        minimum=1,
        maximum=10_000,
    )
    max_scan_entries: int = number(
        16,
        "maxNumEntriesPerReadLastRecordScan",
        "Entries up to which that doubles",
        minimum=1,
        maximum=10_000,
    )
