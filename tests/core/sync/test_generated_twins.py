"""The synchronous classes are what the generator makes of the asynchronous ones, with types and docstrings."""

from __future__ import annotations

import importlib
import inspect

import pytest

from dlspark.core.sync.generation import MODULES, paths, rewritten


@pytest.mark.parametrize("path", paths(), ids=lambda path: str(path.stem))
def test_the_checked_in_modules_are_what_the_generator_makes(path) -> None:
    assert rewritten(path.read_text()) == path.read_text(), "run python -m dlspark.core.sync"


@pytest.mark.parametrize("name", MODULES)
def test_every_public_method_of_a_synchronous_class_says_what_it_does(name: str) -> None:
    module = importlib.import_module(name)
    missing = [
        f"{one.__name__}.{member}"
        for one in vars(module).values()
        if inspect.isclass(one) and one.__module__ == module.__name__ and not one.__name__.startswith("_")
        for member, value in vars(one).items()
        if not member.startswith("_")
        and (callable(value) or isinstance(value, (property, staticmethod, classmethod)))
        and not inspect.getdoc(value)
    ]
    assert missing == []


def test_what_is_by_hand_or_left_out_is_not_made() -> None:
    text = '''
class Twin:
    def truncate(self) -> None:
        """By hand."""

    # --- made from dlspark.core.writing.writer.AsyncLogWriter; left out: use_settings, wait_for_room

    # --- made up to here
'''
    made = rewritten(text)
    assert made.count("def truncate(") == 1
    assert "use_settings(" not in made
    assert "def flush(self) -> int:" in made
    assert rewritten(made) == made
