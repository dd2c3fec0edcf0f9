"""Add templates give exactly the bytes of `protocol.encoding`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage_node.protocol.adds import AddTemplate
from storage_node.protocol.encoding import RECOVERY_PRIORITY, encode_add_request, encode_add_response

IDS = st.integers(0, 2**63 - 1)


@given(IDS, IDS, IDS, st.binary(min_size=20, max_size=20), st.integers(0, 5 << 20), st.booleans(), st.booleans())
def test_a_template_gives_the_bytes_of_the_message_and_of_its_answer(
    txn_id: int, ledger_id: int, entry_id: int, key: bytes, length: int, recovery: bool, deferred: bool
) -> None:
    template = AddTemplate(ledger_id, key, recovery=recovery, deferred_sync=deferred)
    head, answer = template.frames(txn_id, entry_id, length)
    priority = RECOVERY_PRIORITY if recovery else 0
    expected = encode_add_request(
        txn_id, ledger_id, entry_id, key, length, recovery=recovery, deferred_sync=deferred, priority=priority
    )
    assert (head, template.tail) == expected
    assert answer == encode_add_response(txn_id, 0, ledger_id, entry_id)
