"""Java's login configuration (JAAS): the files in which upstream keeps the names and passwords of SASL.

    Bookie {
      org.apache.zookeeper.server.auth.DigestLoginModule required user_bookkeeper="secret" user_other="text";
    };
    BookKeeper {
      org.apache.zookeeper.server.auth.DigestLoginModule required username="bookkeeper" password="secret";
    };

The grammar is that of `javax.security.auth.login.Configuration`: sections of modules, each with a flag and options;
comments as in Java; strings with Java's escapes. References to properties of a JVM (`${...}`) are refused: there is no
JVM here. Passwords become `Secret`, no error shows what stands in the file, and a file with passwords that everybody
may read is refused.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metadata.foundation.errors import CallerError
from metadata.security.secrets import Secret

DIGEST_MODULE: Final = "org.apache.zookeeper.server.auth.DigestLoginModule"
KERBEROS_MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"
MAX_FILE_BYTES: Final = 1024 * 1024
USER_PREFIX: Final = "user_"
_FLAGS: Final = frozenset(("required", "requisite", "sufficient", "optional"))
_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\r\f\v]+|//[^\n]*|\#[^\n]*|/\*.*?\*/)
      | (?P<line>\n)
      | "(?P<double>(?:[^"\\\n]|\\[^\n])*)"
      | '(?P<single>(?:[^'\\\n]|\\[^\n])*)'
      | (?P<mark>[{};=])
      | (?P<word>[^\s{};="'/]+(?:/[^\s{};="'/*]+)*)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-3][0-7]{2}|[0-7]{1,2}|.)", re.DOTALL)
_ESCAPED: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class JaasError(CallerError):
    """The login configuration cannot be read, or lacks what was to be found in it; nothing was done."""


@dataclass(frozen=True, slots=True)
class JaasModule:
    """Which module does a section name, and with which options? Passwords are in `secrets`, all else in `options`."""

    name: str
    flag: str
    options: Mapping[str, str]
    secrets: Mapping[str, Secret]

    @property
    def is_kerberos(self) -> bool:
        """True for the module that logs in to Kerberos, whichever JVM's."""
        return self.name.rpartition(".")[2] == "Krb5LoginModule"


@dataclass(frozen=True, slots=True)
class KerberosLogin:
    """As whom, and with which keys, is logged in to Kerberos?"""

    principal: str | None
    keytab: str | None
    ticket_cache: str | None


@dataclass(frozen=True, slots=True)
class JaasSection:
    """What does one section of a login configuration say?"""

    path: str
    name: str
    modules: tuple[JaasModule, ...]

    def passwords(self) -> Mapping[str, Secret]:
        """Return the passwords of the users that a server knows (options `user_NAME`), by name."""
        return {
            name[len(USER_PREFIX) :]: secret
            for module in self.modules
            for name, secret in module.secrets.items()
            if name.startswith(USER_PREFIX)
        }

    def login(self) -> tuple[str, Secret]:
        """Return the name and the password of a client. Raises JaasError where the section has none."""
        for module in self.modules:
            name, password = module.options.get("username"), module.secrets.get("password")
            if name and password is not None:
                return name, password
        raise JaasError(f"the section {self.name} has no module with username and password", path=self.path)

    def kerberos(self) -> KerberosLogin | None:
        """Return how to log in to Kerberos, or None where no module is for that.

        Raises JaasError for a module that asks for a password on the terminal.
        """
        for module in self.modules:
            if not module.is_kerberos:
                continue
            options = module.options
            keytab = options.get("keyTab", "").removeprefix("file:") or None
            if _is_true(options, "useTicketCache"):
                cache = options.get("ticketCache", "").removeprefix("file:") or None
                return KerberosLogin(
                    options.get("principal"), keytab if _is_true(options, "useKeyTab") else None, cache
                )
            if not _is_true(options, "useKeyTab"):
                raise JaasError(
                    f"the section {self.name} has neither useKeyTab=true nor useTicketCache=true: nobody types a "
                    "password here",
                    path=self.path,
                )
            return KerberosLogin(options.get("principal"), keytab, None)
        return None


def read_jaas(path: str | os.PathLike[str]) -> Mapping[str, JaasSection]:
    """Return the sections of a login configuration by name. Raises JaasError, which shows none of the content."""
    place = str(path)
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as cause:
        raise JaasError(f"the login configuration cannot be read: {cause.strerror or cause}", path=place) from cause
    if len(content) > MAX_FILE_BYTES:
        raise JaasError(f"the login configuration is longer than {MAX_FILE_BYTES} bytes", path=place)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise JaasError("the login configuration is not a text in UTF-8", path=place) from None
    sections = parse_jaas(text, place)
    if mode & stat.S_IRWXO and any(module.secrets for one in sections.values() for module in one.modules):
        raise JaasError(
            "everybody may read or change the login configuration, and it has passwords",
            path=place,
            advice=f"Take the right away: chmod o= {place}",
        )
    return sections


def section_of(path: str | os.PathLike[str], name: str) -> JaasSection:
    """Return one section of a login configuration. Raises JaasError, also where there is none of that name."""
    sections = read_jaas(path)
    if name not in sections:
        known = ", ".join(sorted(sections)) or "none"
        raise JaasError(f"the login configuration has no section {name}; it has: {known}", path=str(path))
    return sections[name]


def parse_jaas(text: str, path: str) -> Mapping[str, JaasSection]:
    """Return the sections of a login configuration's text by name; `path` is for errors. Raises JaasError."""
    return _Parser(text, path).sections()


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    line: int
    is_mark: bool = False


class _Parser:
    """Which sections does a text have? Recursive descent, one method for each rule of the grammar."""

    def __init__(self, text: str, path: str) -> None:
        self._path = path
        self._tokens = self._scan(text)
        self._line = 1
        self._next: _Token | None = None
        self._advance()

    def sections(self) -> Mapping[str, JaasSection]:
        found: dict[str, JaasSection] = {}
        while self._next is not None:
            name = self._word("the name of a section")
            if name in found:
                raise self._error(f"the section {name} comes twice")
            self._mark("{")
            modules: list[JaasModule] = []
            while not self._at("}"):
                modules.append(self._module())
            self._mark("}")
            self._mark(";")
            if not modules:
                raise self._error(f"the section {name} has no module")
            found[name] = JaasSection(self._path, name, tuple(modules))
        return found

    def _module(self) -> JaasModule:
        name = self._word("the class of a module")
        flag = self._word("a module's flag").lower()
        if flag not in _FLAGS:
            raise self._error(f"a module's flag is one of {', '.join(sorted(_FLAGS))}")
        options: dict[str, str] = {}
        hidden: dict[str, Secret] = {}
        while not self._at(";"):
            key = self._word("an option")
            self._mark("=")
            value = self._word("an option's value")
            if key in options or key in hidden:
                raise self._error("an option of a module comes twice")
            if "${" in value:
                raise self._error("a value refers to a property of a JVM, and there is none here: write it out")
            if key.startswith(USER_PREFIX) or "password" in key.lower():
                hidden[key] = Secret(value)
            else:
                options[key] = value
        self._mark(";")
        return JaasModule(name, flag, options, hidden)

    # ------------------------------------------------------------------------------------ tokens

    def _scan(self, text: str) -> Iterator[_Token]:
        at, line = 0, 1
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error("what stands there belongs to no login configuration, or a string has no end", line)
            kind, found = match.lastgroup, match.group()
            if kind == "mark":
                yield _Token(found, line, is_mark=True)
            elif kind == "word":
                yield _Token(found, line)
            elif kind in ("double", "single"):
                yield _Token(_ESCAPE.sub(_unescaped, match[kind]), line)
            line += found.count("\n")
            at = match.end()

    def _advance(self) -> None:
        if self._next is not None:
            self._line = self._next.line
        self._next = next(self._tokens, None)

    def _at(self, mark: str) -> bool:
        token = self._next
        return token is not None and token.is_mark and token.text == mark

    def _mark(self, mark: str) -> None:
        if not self._at(mark):
            raise self._error(f"{mark!r} is missing")
        self._advance()

    def _word(self, what: str) -> str:
        token = self._next
        if token is None or token.is_mark:
            raise self._error(f"{what} is missing")
        self._advance()
        return token.text

    def _error(self, message: str, line: int | None = None) -> JaasError:
        if line is None:
            line = self._next.line if self._next is not None else self._line
        return JaasError(f"line {line} of the login configuration: {message}", path=self._path)


def _unescaped(match: re.Match[str]) -> str:
    what = match[1]
    return chr(int(what, 8)) if what[0] in "01234567" else _ESCAPED.get(what, what)


def _is_true(options: Mapping[str, str], key: str) -> bool:
    return options.get(key, "").lower() == "true"
