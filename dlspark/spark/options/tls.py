"""Options `tls.*`: by which files a query proves who it is, and whom it believes. Each is a setting of the namespace's
clients under the name that a user of Spark looks for, and switches security on.

    tls.directory=/etc/dlspark/tls/etl                           an identity folder: all that is needed, as a rule
    tls.keyStore=/etc/etl.p12, tls.keyStoreType=PKCS12           stores as Java has them
    tls.keyStorePassword=file:/etc/etl.password, or env:NAME     where their password is, never the password

They name files and variables, on the driver and at the same place on every executor. What Spark keeps, shows and logs
of a query has its options: so a secret is never an option's value, and what was given in the place of one is refused
without being repeated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from dlspark.spark.errors import OptionError
from metadata.foundation.settings import Kind, UnreadableValue
from metadata.security.identity_files import BY_VARIABLE

PREFIX: Final = "tls."
DIRECTORY: Final = "tls.directory"
_BY_FILE: Final = "file:"
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

SETTINGS: Final[Mapping[str, str]] = {
    DIRECTORY: "securitydirectory",
    "tls.keyStore": "bkc.tlskeystore",
    "tls.keyStoreType": "bkc.tlskeystoretype",
    "tls.keyStorePassword": "bkc.tlskeystorepasswordpath",  # pragma: allowlist secret
    "tls.certificate": "bkc.tlscertificatepath",
    "tls.trustStore": "bkc.tlstruststore",
    "tls.trustStoreType": "bkc.tlstruststoretype",
    "tls.trustStorePassword": "bkc.tlstruststorepasswordpath",  # pragma: allowlist secret
    "tls.revocationLists": "bkc.tlsrevocationlistspath",
}
"""The setting that each option is, as `Options.passed_on` has its key."""
PASSWORDS: Final = frozenset({"tls.keyStorePassword", "tls.trustStorePassword"})
_SWITCHES: Final = ("security", "bkc.security")


def _read_place(text: str) -> str:
    """Return the setting's value for the place of a password. The text is in no error: it may be a password."""
    place = text.strip()
    if place.startswith(_BY_FILE) and place.removeprefix(_BY_FILE).strip():
        return place.removeprefix(_BY_FILE).strip()
    if place.startswith(BY_VARIABLE) and _VARIABLE.fullmatch(place.removeprefix(BY_VARIABLE)):
        return place
    raise UnreadableValue("a password itself is never an option's value, for Spark shows and keeps options")


def _take_place(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return value


SECRET_PLACE: Final[Kind[str]] = Kind(
    "the place of a password, `file:` with its path or `env:` with the name of a variable", _read_place, _take_place
)


def tls_settings(given: Mapping[str, str], passed_on: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a query's options `tls.*` are; none without any.

    Args:
        given: those options, by their registered names.
        passed_on: the settings that the query hands on besides.

    Raises OptionError where one of these says the same thing, or switches security off.
    """
    if not given:
        return {}
    for option in given:
        key = SETTINGS[option]
        also = {key, f"bkc.{key}"} & passed_on.keys()
        if also:
            raise OptionError(
                f"Option {option} is given, and a setting of clients says the same",
                advice=f"Give option {option} alone, in place of {', '.join(sorted(also))}",
            )
    switches = {passed_on[key].strip().lower() for key in _SWITCHES if key in passed_on}
    if "off" in switches:
        raise OptionError(
            f"Option {next(iter(given))} is given, and security is switched off: nothing would look at it",
            advice="Leave out distributedlog.security, which tls options switch on, or leave these out",
        )
    found = {SETTINGS[option]: _read_place(value) if option in PASSWORDS else value for option, value in given.items()}
    return found if switches else {"security": "on", **found}
