"""The pages of docs/settings/ and the files of conf/ are what the settings say, and lead to each other."""

from __future__ import annotations

import pytest
from helpers.documents.pages import broken_links, linked_files
from helpers.paths import CONF, ROOT

from dlspark.cli.settings_pages import DIRECTORY, OVERVIEW, PAGES, SettingsPage, made, main, page_text

MADE = made(ROOT)
BY_HAND = {"decider.conf", "stream.conf"}
"""Examples of operators' files, which list no settings."""


@pytest.mark.parametrize("path", MADE)
def test_a_file_is_what_the_settings_say(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == MADE[path], "run: python -m dlspark.cli.settings_pages"


def test_no_page_or_file_is_left_that_nothing_makes() -> None:
    files = [*(ROOT / DIRECTORY).iterdir(), *(path for path in CONF.iterdir() if path.name not in BY_HAND)]
    assert {path.relative_to(ROOT).as_posix() for path in files} == set(MADE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_every_setting_and_every_key_that_is_refused(page: SettingsPage) -> None:
    text = page_text(page)
    keys = [*(info.key for group in page.groups for info in group.settings), *page.refused]
    assert [key for key in keys if f"\n| `{key}`" not in text] == []


@pytest.mark.parametrize("path", [path for path in MADE if path.endswith(".md")])
def test_links_lead_to_a_file_and_a_heading(path: str) -> None:
    assert broken_links(ROOT / path) == []


def test_the_overview_leads_to_every_page() -> None:
    assert linked_files(ROOT / OVERVIEW) == {ROOT / page.path for page in PAGES}


def test_all_files_are_written_where_the_command_runs(tmp_path, monkeypatch) -> None:
    (tmp_path / DIRECTORY).mkdir(parents=True)
    (tmp_path / "conf").mkdir()
    kept = [page for page in PAGES if page.by_hand]
    for page in kept:
        (tmp_path / page.path).write_text(f"old\n{page.by_hand}\nby hand\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["settings_pages"])
    main()
    assert {path for path in MADE if (tmp_path / path).is_file()} == set(MADE)
    for page in kept:
        assert (tmp_path / page.path).read_text(encoding="utf-8").endswith(f"\n\n{page.by_hand}\nby hand\n")
