"""Which core is in use is one decision, with its reason in words; an installed one that does not fit is not used."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from dlspark.cli.doctor_checks import CheckOutcome, check_compiled
from metadata.foundation import compiled


def installed(monkeypatch: pytest.MonkeyPatch, interface: int) -> SimpleNamespace:
    functions = {name: print for name in vars(compiled.CompiledCore) if name[0] != "_"}
    core = SimpleNamespace(INTERFACE=interface, __version__="7.8.9", **functions)
    monkeypatch.delenv(compiled.NO_SPEED, raising=False)
    monkeypatch.setitem(sys.modules, "dlspark_speed", core)
    return core


def test_one_of_the_same_interface_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    core = installed(monkeypatch, compiled.INTERFACE)
    assert compiled._load() == (core, f"the compiled core: dlspark-speed 7.8.9, interface {compiled.INTERFACE}", "")


@pytest.mark.parametrize("interface", [compiled.INTERFACE - 1, compiled.INTERFACE + 1])
def test_one_of_another_interface_is_not_used_and_both_numbers_are_said(
    monkeypatch: pytest.MonkeyPatch, interface: int
) -> None:
    installed(monkeypatch, interface)
    core, said, todo = compiled._load()
    assert core is None
    assert "make speed" in todo
    assert f"dlspark-speed 7.8.9 has interface {interface}, and this dlspark {compiled.INTERFACE}" in said


def test_one_that_lacks_a_function_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    core = installed(monkeypatch, compiled.INTERFACE)
    del core.append_adds
    said = "pure Python: dlspark-speed 7.8.9 has no append_adds: build it anew"
    assert compiled._load() == (None, said, compiled._BUILD)


def test_without_one_it_is_pure_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(compiled.NO_SPEED, raising=False)
    monkeypatch.setitem(sys.modules, "dlspark_speed", None)
    assert compiled._load() == (None, "pure Python: dlspark-speed is not installed", "")


@pytest.mark.parametrize(
    ("value", "used"), [("1", False), ("yes", False), (" True", False), ("0", True), ("no", True), ("", True)]
)
def test_the_environment_can_say_that_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch, value: str, used: bool) -> None:
    installed(monkeypatch, compiled.INTERFACE)
    monkeypatch.setenv(compiled.NO_SPEED, value)
    core, said, todo = compiled._load()
    assert ((core is not None), todo) == (used, "")
    assert (f"DLSPARK_NO_SPEED={value.strip()} is set" in said) is not used


def test_a_word_that_is_neither_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, compiled.INTERFACE)
    monkeypatch.setenv(compiled.NO_SPEED, "maybe")
    core, said, todo = compiled._load()
    assert (core, said) == (None, "pure Python: DLSPARK_NO_SPEED=maybe is set, which is no word for yes or no")
    assert todo == "Set it to 1 (yes, true, on) or 0 (no, false, off)"


def test_one_that_cannot_be_loaded_is_said_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "dlspark_speed":
                raise ImportError("undefined symbol: PyNothing")

    monkeypatch.delenv(compiled.NO_SPEED, raising=False)
    monkeypatch.delitem(sys.modules, "dlspark_speed", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    core, said, todo = compiled._load()
    assert core is None
    assert "make speed" in todo
    assert "undefined symbol: PyNothing" in said


def test_the_doctor_says_which_and_warns_of_one_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "said", "what is in use")
    monkeypatch.setattr(compiled, "todo", "")
    (found,) = check_compiled()
    assert (found.verdict, found.found, found.todo) == (CheckOutcome.OK, "what is in use", "")
    monkeypatch.setattr(compiled, "todo", compiled._BUILD)
    (found,) = check_compiled()
    assert found.verdict is CheckOutcome.WARN
    assert "make speed" in found.todo
