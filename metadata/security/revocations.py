"""Which revocation lists are about a certificate, and what do they say of it?

Lists and certificates name their authority. Two authorities may bear one name, each with a key of its own, and serial
numbers are an authority's own affair: the list of one must not count for what the other has signed. Both say which key
has signed them (`authorityKeyIdentifier`, which RFC 5280 demands of both), and that tells them apart.

Where one of them does not say it, nothing here can tell, as signatures are OpenSSL's to verify. Then a list counts for
whatever it may be about: it may refuse a certificate too many, never let in one too many. OpenSSL itself takes one of
such lists in a handshake, and refuses where another key has signed that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metadata.security.certificates import CertificateFacts, Name, RevocationList
from metadata.security.identity_files import moment_text


def lists_in_force(
    lists: Iterable[RevocationList], authorities: Sequence[CertificateFacts]
) -> tuple[RevocationList, ...]:
    """Return the newest list of each authority, or of each part where one has divided its certificates.

    Args:
        authorities: those that are believed, whose names may be shared.
    """
    groups: dict[tuple[Name, bytes], list[RevocationList]] = {}
    for one in lists:
        groups.setdefault((one.issuer, one.part), []).append(one)
    found: list[RevocationList] = []
    for (name, _), group in groups.items():
        group.sort(key=lambda one: one.this_update_s, reverse=True)
        if not _is_shared(name, [one for each in groups.values() for one in each], authorities):
            found.append(group[0])
            continue
        newest = {one.authority_key_id: one for one in reversed(group) if one.authority_key_id is not None}
        # Of those that do not say whose they are, an older one may be the other authority's.
        found += [one for one in group if one.authority_key_id is None or newest[one.authority_key_id] is one]
    return tuple(found)


def _is_shared(name: Name, lists: Iterable[RevocationList], authorities: Iterable[CertificateFacts]) -> bool:
    bearers = [one for one in authorities if one.subject == name]
    numbers = {one.authority_key_id for one in lists if one.issuer == name} | {one.key_id for one in bearers}
    return len(numbers - {None}) > 1 or len({one.key for one in bearers}) > 1


def lists_about(facts: CertificateFacts, lists: Iterable[RevocationList]) -> list[RevocationList]:
    """Return those of the lists in force that are, or may be, about a certificate."""
    found = [one for one in lists if facts.may_be_signed_by(one.issuer, one.authority_key_id)]
    if facts.authority_key_id is None:
        return found
    # Its own authority's list takes the place of older ones that do not say whose they are.
    since = {one.part: one.this_update_s for one in found if one.authority_key_id is not None}
    return [one for one in found if one.authority_key_id is not None or one.this_update_s > since.get(one.part, -1.0)]


def revocation_objection(facts: CertificateFacts, lists: Iterable[RevocationList], now_s: float) -> str | None:
    """Return why the lists in force do not let a certificate in; None: they do."""
    about = lists_about(facts, lists)
    if not about:
        # As OpenSSL has it. There may be lists only since the handshake, and gRPC's looks at none.
        return f"its authority, {facts.issuer_text}, has no revocation list"
    for one in about:
        if one.next_update_s is not None and now_s >= one.next_update_s:
            return f"the revocation list of {facts.issuer_text} ended at {moment_text(one.next_update_s)}"
        if facts.serial in one.serials:
            return f"its authority, {facts.issuer_text}, has revoked it"
    return None


def lists_missing(lists: Sequence[RevocationList], authorities: Iterable[CertificateFacts]) -> list[str]:
    """Return what lists fall short of what the believed authorities need, in words."""
    found: dict[str, None] = {}
    authorities = list(authorities)
    for one in authorities:
        own = [each for each in lists if each.issuer == one.subject]
        if all(one.key_id != each.authority_key_id and None not in (one.key_id, each.authority_key_id) for each in own):
            found[f"has no revocation list of {one.subject_text}: what that authority has signed is refused"] = None
        elif len({each.key for each in authorities if each.subject == one.subject}) > 1 and any(
            each.authority_key_id is None for each in own
        ):
            found[
                f"has a revocation list of {one.subject_text} that does not say by which key it is signed"
                " (authorityKeyIdentifier), and two authorities bear that name: what one of them has signed is refused."
                " Have its list made with that extension"
            ] = None
    return list(found)
