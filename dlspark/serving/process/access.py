"""`AccessKeys`: the settings of a proxy that say who may do what there, beside the rules in ZooKeeper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metadata.foundation.settings import WHOLE, WORDS, setting
from metadata.security.audit import AuditKeys
from metadata.security.rights import Subject

_SUPER_USERS: Final = ("role:operator",)


@dataclass(frozen=True)
class AccessKeys(AuditKeys):
    """Rights, and the audit trail"""

    super_users: tuple[str, ...] = setting(
        WORDS,
        _SUPER_USERS,
        "superUsers",
        "Who may do everything, whatever the rules of access say, also while these cannot be read: `user:NAME`, "
        "`role:NAME` (of certificates; a token's roles count for rules only). Empty: nobody; then rules are mended by "
        "who may write to ZooKeeper",
        own=True,
        section="Rights",
    )
    rights_max_age_s: int = setting(
        WHOLE,
        60,
        "rightsMaxAgeSecs",
        "How long the rules of access hold as they were read last, while ZooKeeper does not answer, in seconds. Then "
        "nothing is allowed until it does",
        minimum=1,
        maximum=86_400,
        own=True,
    )

    def super_subjects(self) -> tuple[Subject, ...]:
        """Return who may do everything. Raises InvalidRuleError."""
        return tuple(map(Subject.parse, self.super_users))
