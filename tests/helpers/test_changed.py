"""Which tests `make quick` runs."""

from __future__ import annotations

from pathlib import Path

from helpers.changed import ALWAYS, changed_files, imported_by, module_of, nearest_first
from helpers.paths import TESTS

ALL = [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")]


def test_a_changed_module_has_the_tests_of_its_folder_and_those_that_import_it():
    found = nearest_first([Path("dlspark/core/codec/dlsn.py")], ALL)
    assert Path("core/codec/test_codec_entries.py") in found
    importing = [one for one in ALL if "dlspark.core.codec.dlsn" in imported_by(TESTS / one)]
    assert set(importing) <= set(found)


def test_a_changed_test_comes_first_and_the_house_is_always_looked_at():
    found = nearest_first([Path("tests/core/codec/test_codec_entries.py"), Path("README.md")], ALL)
    assert sorted(one.name for one in found) == sorted(["test_codec_entries.py", *ALWAYS])


def test_a_changed_helper_has_the_tests_that_import_it():
    found = nearest_first([Path("tests/helpers/virtual_time.py")], ALL)
    importing = [one for one in ALL if "helpers.virtual_time" in imported_by(TESTS / one)]
    assert importing
    assert set(importing) <= set(found)


def test_names_are_those_of_modules():
    assert module_of(Path("dlspark/spark/__init__.py")) == "dlspark.spark"
    assert all(isinstance(one, Path) for one in changed_files())
