"""Options `tls.*`: settings of the namespace's clients by the names that a user looks for; and no secret by value."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.security.minting import MintedAuthority

from dlspark.core.namespace import AsyncNamespace
from dlspark.core.settings.settings import Settings
from dlspark.spark.catalog.tables import checked_properties
from dlspark.spark.connection import namespace_settings, open_namespace
from dlspark.spark.errors import OptionError
from dlspark.spark.metadata_tables.registry import requested
from dlspark.spark.options.query_options import Options
from dlspark.spark.options.registry import Scope
from dlspark.spark.options.tls import SETTINGS
from dlspark.spark.sink.session import settings_of
from dlspark.spark.source.selection import SourceQuery
from metadata.foundation.errors import MetadataUnavailableError
from metadata.security.errors import IdentityError
from metadata.security.identity import TlsFiles, TlsIdentity
from metadata.security.identity_files import password_of
from metadata.security.settings import SecurityMode, SecuritySettings

SECRET = "s3cret-by-value"
URI = "distributedlog://localhost/a"


def options(scope: Scope = Scope.SOURCE_BATCH, /, **raw: str) -> Options:
    given = {name.replace("__", "."): value for name, value in raw.items()}
    return Options({"uri": URI, "log": "orders", **given}, scope)


def security_of(made: Options) -> SecuritySettings:
    return Settings.from_mapping(namespace_settings(made.passed_on())).client_settings().security


@pytest.mark.parametrize("scope", [Scope.SOURCE_BATCH, Scope.SOURCE_STREAM, Scope.SINK_BATCH, Scope.SINK_STREAM])
def test_a_folder_is_all_that_is_needed(scope: Scope) -> None:
    made = options(scope, tls__directory="/identity")
    found = security_of(made)
    assert (found.client_mode({}), found.security_directory) == (SecurityMode.ON, "/identity")
    if Scope.SINK & scope:
        assert settings_of(made).client_settings().security == found


def test_each_option_is_a_setting_and_has_its_meaning() -> None:
    found = security_of(
        options(
            tls__keystore="/key.p12",
            tls__keystoretype="PKCS12",
            tls__keystorepassword="file:/key.password",
            tls__truststore="/trust.jks",
            tls__truststoretype="jks",
            tls__truststorepassword="env:TRUST_PASSWORD",
            tls__revocationlists="/revoked.pem",
            tls__certificate="/certificate.pem",
        )
    )
    assert (found.tls_key_store, found.tls_key_store_type) == ("/key.p12", "pkcs12")
    assert found.tls_key_store_password_path == "/key.password"
    assert (found.tls_trust_store, found.tls_trust_store_type) == ("/trust.jks", "jks")
    assert found.tls_trust_store_password_path == "env:TRUST_PASSWORD"
    assert (found.tls_revocation_lists_path, found.tls_certificate_path) == ("/revoked.pem", "/certificate.pem")
    assert found.security == "on"
    for setting in SETTINGS.values():
        assert next(iter(namespace_settings({setting: "x"}))) != setting, f"{setting} is no setting of clients"


@pytest.mark.parametrize("name", ["tls__keystorepassword", "tls__truststorepassword"])
@pytest.mark.parametrize("value", [SECRET, f"env:{SECRET}", "file:", "env:", f"http:{SECRET}"])
def test_a_password_by_value_is_refused_and_not_repeated(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=r"never an option's value|place of a password") as caught:
        options(**{name: value})
    assert SECRET not in f"{caught.value!r}{caught.value}{caught.value.advice}{caught.value.__cause__!r}"


@pytest.mark.parametrize("name", ["distributedlog.digestPw", "distributedlog.zkAclId"])
def test_a_secret_setting_by_value_is_refused_and_not_repeated(name: str) -> None:
    made = Options({"uri": URI, "log": "orders", name: SECRET}, Scope.SINK_BATCH)
    with pytest.raises(OptionError, match="is a secret, and an option's value is none") as caught:
        settings_of(made)
    assert SECRET not in f"{caught.value!r}{caught.value}{caught.value.advice}"


@pytest.mark.parametrize(
    "name", ["tls__keypassword", "tls__token", "ssl__keystore__password", "kafka__ssl__key__password"]
)
def test_what_is_not_known_is_refused_with_a_hint_and_without_its_value(name: str) -> None:
    with pytest.raises(OptionError, match=r"Unknown option|another connector's") as caught:
        options(**{name: SECRET})
    assert "tls." in str(caught.value.advice)
    assert SECRET not in f"{caught.value!r}{caught.value}{caught.value.advice}"


def test_one_thing_is_said_once() -> None:
    with pytest.raises(OptionError, match=r"tls\.directory is given, and a setting of clients says the same"):
        options(tls__directory="/a", distributedlog__securityDirectory="/b")
    with pytest.raises(OptionError, match=r"tls\.keyStore is given"):
        options(tls__keystore="/a", bkc__tlskeystore="/b")
    with pytest.raises(OptionError, match="security is switched off"):
        options(tls__directory="/a", distributedlog__security="off")
    middle = options(tls__directory="/a", distributedlog__security="optional")
    assert security_of(middle).client_mode({}) is SecurityMode.OPTIONAL
    with pytest.raises(OptionError, match="not one of pem, jks, pkcs12"):
        options(tls__keystoretype="der")


def test_a_session_may_say_it_for_all_queries_and_a_table_for_none() -> None:
    made = Options({"uri": URI, "log": "x"}, Scope.SINK_STREAM, {"tls.directory": "/identity"})
    assert security_of(made).security_directory == "/identity"
    with pytest.raises(OptionError, match="cannot be a property of a table"):
        checked_properties({"tls.directory": "/identity"})
    assert requested(options(tls__directory="/identity", metadata="segments")) is not None
    assert SourceQuery.of(options(tls__directory="/i")).client_settings  # the query takes them along


def test_a_store_opens_with_the_password_of_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MintedAuthority().folder(tmp_path / "client", "etl", roles=["client"])
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    key = load_pem_private_key((tmp_path / "client" / "key.pem").read_bytes(), None)
    encrypted = tmp_path / "key.pem"
    encrypted.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(SECRET.encode()))
    )
    encrypted.chmod(0o600)
    files = TlsFiles(
        certificate=str(tmp_path / "client" / "certificate.pem"),
        key=str(encrypted),
        key_password="env:KEY_PASSWORD",
        authorities=str(tmp_path / "client" / "authorities.pem"),
    )
    with pytest.raises(IdentityError, match="KEY_PASSWORD, which is to hold a password, is not set"):
        TlsIdentity(files)
    monkeypatch.setenv("KEY_PASSWORD", SECRET)
    identity = TlsIdentity(files)
    assert identity.own_certificate is not None
    assert identity.refresh() is False


def test_a_password_of_a_variable_may_be_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    latin = "geheim\xfc".encode("latin-1")
    monkeypatch.setenv("KEY_PASSWORD", os.fsdecode(latin))
    assert password_of("env:KEY_PASSWORD") == latin


async def test_a_query_without_an_identity_is_told_which_option_names_one() -> None:
    async def refused(uri: str) -> AsyncNamespace:
        raise MetadataUnavailableError("the server speaks TLS at this port", advice="Set security=on")

    with pytest.raises(MetadataUnavailableError) as told:
        await open_namespace("distributedlog://zk:2181/ns", refused)
    assert "the server speaks TLS at this port; nothing was read" in str(told.value)
    assert "Set security=on" in str(told.value)
    assert "option tls.directory" in str(told.value)
