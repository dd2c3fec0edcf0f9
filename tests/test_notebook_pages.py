"""The shipped notebooks as JupyterLab 4 shows them to who has not run them: untrusted, in the light and the dark theme.

Needs Chromium (Debian: `apt-get install chromium`); where there is none the tests are skipped, and fail in CI.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import nbformat
import pytest
from helpers.paths import ROOT, TESTS

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.name for path in NOTEBOOKS]
SHOWN = ("01-quickstart.ipynb", "05-operations.ipynb")
"""Those that each run looks at; the others, which have the same kinds of output, with --rounds."""
EACH = pytest.mark.parametrize(
    "name", [name if name in SHOWN else pytest.param(name, marks=pytest.mark.long) for name in NAMES]
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
THEMES = ("light", "dark")
INLINE = "inline.ipynb"
DRAWN = r'data:image/svg\+xml;base64,([^"]+)"'

pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        CHROMIUM is None and os.environ.get("CI") != "true", reason="there is no Chromium (apt-get install chromium)"
    ),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory, rounds):
    """What `notebook_viewer` saw: by notebook and theme; and the names of those that are not trusted."""
    assert CHROMIUM is not None, "CI must have Chromium: .ci/install-browser"
    directory = tmp_path_factory.mktemp("viewer")
    inline = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("picture", execution_count=1)])
    svg = "<svg><g><title>one</title><rect width='5' height='5'/></g><g><title>two</title></g></svg>"
    inline.cells[0].outputs = [nbformat.v4.new_output("display_data", {"text/html": f"<b>inline</b>{svg}"})]
    nbformat.write(inline, directory / INLINE)
    notebooks = [path for path in NOTEBOOKS if rounds is not None or path.name in SHOWN]
    command = [
        sys.executable,
        TESTS / "helpers" / "documents" / "notebook_viewer.py",
        directory / "seen",
        *notebooks,
        directory / INLINE,
    ]
    done = subprocess.run(
        command, env={**os.environ, "CHROMIUM": CHROMIUM}, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((directory / "seen" / "seen.json").read_text())


def pictures(cell):
    """Images that a saved cell has: pairs of whether it is ours, and its bytes."""
    found = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        html = "".join(data.get("text/html", ""))
        assert "<svg" not in html, "a page that is not trusted loses it"
        found += [(True, base64.b64decode(one)) for one in re.findall(DRAWN, html)]
        found += [(False, base64.b64decode(data["image/png"]))] if "image/png" in data and not html else []
    return found


@pytest.mark.parametrize("theme", THEMES)
def test_a_page_that_is_not_trusted_loses_inline_drawings(seen, theme):
    """What this file is about happens on these pages: without it the other tests would say nothing."""
    assert sorted(seen["untrusted"]) == sorted(seen["seen"])
    assert {*SHOWN, INLINE} <= seen["seen"].keys()
    page = seen["seen"][INLINE][theme]
    assert page["drawings"] == 0
    assert page["cells"][0]["text"].split() == ["inlineonetwo"]


@pytest.mark.parametrize("theme", THEMES)
@EACH
def test_every_picture_of_a_notebook_is_there(seen, name, theme):
    page = seen["seen"][name][theme]
    assert page["theme"] == str(theme == "light").lower()
    assert page["drawings"] == 0
    saved = nbformat.read(ROOT / "notebooks" / name, as_version=4).cells
    assert len(saved) == len(page["cells"])
    expected = [pictures(cell) for cell in saved]
    assert [len(one) for one in expected] == [len(cell["images"]) for cell in page["cells"]]
    assert sum(map(len, expected)) > 0
    for cell, shown in zip(expected, page["cells"], strict=True):
        for (ours, content), image in zip(cell, shown["images"], strict=True):
            width, height = image["natural"]
            assert image["loaded"]
            assert (width > 300, height > 60) == (True, True)
            assert 300 < image["box"][0] <= 1280
            assert image["box"][0] / image["box"][1] == pytest.approx(width / height, rel=0.02), "not squeezed"
            if ours:
                assert image["kind"].startswith("data:image/svg+xml")
                assert len(image["alt"]) > 20
                for title in ElementTree.fromstring(content).iter("{http://www.w3.org/2000/svg}title"):
                    assert title.text not in shown["text"], "titles of a drawing run together as text"


@pytest.mark.parametrize("theme", THEMES)
@EACH
def test_the_text_of_outputs_reads_in_both_themes(seen, name, theme):
    colours = {tuple(pair) for cell in seen["seen"][name][theme]["cells"] for pair in cell["texts"]}
    assert colours
    assert min(contrast(ink, ground) for ink, ground in colours) >= 4.5, colours


def contrast(ink, ground):
    """The contrast ratio of two of the browser's colours, as accessibility guidelines define it: 1 to 21."""
    red, green, blue, *alpha = (float(number) for number in re.findall(r"[\d.]+", ink))
    behind = [float(number) for number in re.findall(r"[\d.]+", ground)][:3]
    share = alpha[0] if alpha else 1.0
    mixed = [share * one + (1 - share) * other for one, other in zip((red, green, blue), behind, strict=True)]
    dark, bright = sorted((luminance(mixed), luminance(behind)))
    return (bright + 0.05) / (dark + 0.05)


def luminance(colour):
    parts = [number / 255 for number in colour]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
