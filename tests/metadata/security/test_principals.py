"""A principal's proof ends when it says."""

from __future__ import annotations

from metadata.security.principals import Principal, Scheme


def test_a_proof_is_over_at_its_very_end() -> None:
    principal = Principal("writer", Scheme.TOKEN, expires_at_s=100.0)
    assert not principal.expired(99.9)
    assert principal.expired(100.0)


def test_a_proof_without_an_end_does_not_expire() -> None:
    assert not Principal("writer", Scheme.TLS).expired(1e12)


def test_a_principal_reads_as_its_name() -> None:
    assert f"{Principal('writer', Scheme.TLS)}" == "writer"
