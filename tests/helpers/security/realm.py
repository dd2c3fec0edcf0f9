"""A Kerberos realm for tests: MIT's krb5kdc on a free port of this host, its files in one folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlspark.testing.java_process import free_port
from helpers.waiting import wait_until

REALM = "DLSPARK.TEST"
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


def no_realm() -> str | None:
    """Return why no realm can be started here; None: it can."""
    for program in ("krb5kdc", "kdb5_util", "kadmin.local"):
        if shutil.which(program, path=_PATH) is None:
            return f"{program} is not installed (Debian: krb5-kdc, krb5-admin-server)"
    try:
        import gssapi  # noqa: F401
    except (ImportError, OSError) as error:
        return f"the library gssapi cannot be loaded: {error}"
    return None


class Realm:
    """Which principals does a realm have? `environment` is what processes need to find it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "KRB5_CONFIG": str(folder / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5RCACHENAME": f"file2:{folder / 'replays'}",
            "KRB5CCNAME": f"FILE:{folder / 'tickets'}",
        }

    def keytab(self, *names: str) -> Path:
        """Add principals with random keys, and return a file with these."""
        path = self.folder / f"{names[0].replace('/', '_')}.keytab"
        for name in names:
            self._run("kadmin.local", "-q", f"addprinc -randkey {name}@{REALM}")
            self._run("kadmin.local", "-q", f"ktadd -k {path} {name}@{REALM}")
        return path

    def _run(self, program: str, *arguments: str) -> None:
        found = shutil.which(program, path=_PATH) or program
        subprocess.run(
            [found, *arguments],
            env=os.environ | self.environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@contextmanager
def started_realm(folder: Path) -> Iterator[Realm]:
    """Run a realm."""
    port = free_port()  # below those that the system gives away meanwhile
    (folder / "krb5.conf").write_text(
        f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n rdns = false\n"
        f" dns_canonicalize_hostname = false\n udp_preference_limit = 1\n"
        f"[realms]\n {REALM} = {{\n  kdc = 127.0.0.1:{port}\n }}\n[domain_realm]\n localhost = {REALM}\n"
    )
    (folder / "kdc.conf").write_text(
        f"[kdcdefaults]\n kdc_listen = 127.0.0.1:{port}\n kdc_tcp_listen = 127.0.0.1:{port}\n"
        f"[realms]\n {REALM} = {{\n  database_name = {folder / 'principal'}\n  key_stash_file = {folder / 'stash'}\n"
        f"  acl_file = {folder / 'acl'}\n  max_life = 1h\n }}\n"
    )
    realm = Realm(folder)
    realm._run("kdb5_util", "create", "-s", "-P", "master", "-r", REALM)
    server = subprocess.Popen(
        [shutil.which("krb5kdc", path=_PATH) or "krb5kdc", "-n", "-P", str(folder / "pid")],
        env=os.environ | realm.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(answers)
        yield realm
    finally:
        server.kill()
        server.wait()
