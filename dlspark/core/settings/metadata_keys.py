"""Settings of what logs are in the metadata store."""

from __future__ import annotations

from dataclasses import dataclass

from dlspark.core.settings.keys import flag, number, text


@dataclass(frozen=True)
class MetadataKeys:
    """Metadata"""

    unpartitioned_stream_name: str = text(
        "<default>",
        "unpartitionedStreamName",
        "Name of the znode under a log that holds it",
        per_log=False,
    )
    first_lssn: int = number(
        1,
        "firstLogsegmentSequenceNumber",
        "Sequence number of a new log's first segment, unless the namespace's binding gives one",
        minimum=1,
        maximum=2**63 - 1,
        old_key="first-logsegment-sequence-number",
        per_log=False,
    )
    create_log_if_missing: bool = flag(
        True,
        "createStreamIfNotExists",
        "Whether opening a writer creates a missing log",
    )
    max_id_sanity_check: bool = flag(
        True,
        "maxIdSanityCheck",
        "Whether a transaction id below the log's highest is refused, record by record",
    )
