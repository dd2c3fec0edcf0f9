"""A real JupyterLab and a headless Chromium that look at saved notebooks, as one sees them who does not trust them.

    python tests/helpers/documents/notebook_viewer.py [--screenshots] DIRECTORY NOTEBOOK...

Each notebook is opened in the light and the dark theme. What was seen goes to DIRECTORY/seen.json, see `LOOK`, and a
screenshot of each to DIRECTORY if they are asked for: they take longer than all the rest. A program of its own, for
Playwright's loop would meet those of asynchronous tests.

Nothing leaves this machine: JupyterLab listens on the loopback address, its look for news is switched off, and all that
it and Chromium keep is in DIRECTORY, so that no notebook has been trusted there before.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
WIDTH = 1280
START_S = 120
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]

LOOK = """
() => {
  const opaque = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!/^rgba\\(.*, 0\\)$|^transparent$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const cells = [...document.querySelectorAll(".jp-NotebookPanel .jp-Cell")];
  return {
    theme: document.body.dataset.jpThemeLight,
    drawings: document.querySelectorAll(".jp-OutputArea-output svg").length,
    cells: cells.map((cell) => ({
      code: cell.classList.contains("jp-CodeCell"),
      text: [...cell.querySelectorAll(".jp-OutputArea-output")].map((one) => one.innerText).join("\\n"),
      images: [...cell.querySelectorAll(".jp-OutputArea-output img")].map((one) => {
        const box = one.getBoundingClientRect();
        return {
          kind: one.src.slice(0, 25), alt: one.alt, loaded: one.complete,
          natural: [one.naturalWidth, one.naturalHeight], box: [box.width, box.height],
        };
      }),
      texts: [...cell.querySelectorAll(".jp-OutputArea-output :is(b, td, th, summary, pre, code)")].map((one) => [
        getComputedStyle(one).color, opaque(one),
      ]),
    })),
  };
}
"""
"""Of each cell: the text and the images of its output, and the colours of its text with those behind it."""


class Lab:
    """A JupyterLab server on the notebooks of a directory, with settings of its own."""

    def __init__(self, directory: Path) -> None:
        self._notebooks = directory / "notebooks"
        self._settings = directory / "settings"
        self._log = directory / "jupyterlab.log"
        own = {f"JUPYTER_{name}_DIR": str(directory / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
        self._environment = os.environ | own | {
            "JUPYTERLAB_SETTINGS_DIR": str(self._settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(directory / "workspaces"),
            "IPYTHONDIR": str(directory / "ipython"),
            "PYTHONWARNINGS": "",
        }  # fmt: skip
        self._runtime = directory / "runtime"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.token = ""

    def __enter__(self) -> Lab:
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
        command += [f"--ServerApp.root_dir={self._notebooks}", "--LabApp.news_url=None", "--expose-app-in-browser"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        until = time.monotonic() + START_S
        while not self._found():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"JupyterLab did not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.1)
        return self

    def _found(self) -> bool:
        assert self._process is not None
        told = self._runtime / f"jpserver-{self._process.pid}.json"
        try:
            server = json.loads(told.read_text())
            self.url, self.token = server["url"].rstrip("/"), server["token"]
            with urllib.request.urlopen(f"{self.url}/api?token={self.token}", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, ValueError):
            return False

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def trusts(self, name: str) -> bool:
        """Return whether any output of a notebook is trusted, as the server says."""
        with urllib.request.urlopen(f"{self.url}/api/contents/{name}?token={self.token}", timeout=30) as answer:
            cells = json.load(answer)["content"]["cells"]
        return any(cell["metadata"].get("trusted", False) for cell in cells if cell.get("outputs"))

    def settle(self) -> None:
        """Choose a theme that does not follow the system's, refuse news, and have cells out of sight rendered too."""
        for name, settings in (
            ("apputils-extension/themes", {"theme": THEMES["light"], "adaptive-theme": False}),
            ("apputils-extension/notification", {"fetchNews": "false", "checkForUpdates": False}),
            ("notebook-extension/tracker", {"windowingMode": "none"}),
        ):
            path = self._settings / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(settings))


def open_notebook(page: Page, lab: Lab, name: str, cells: int) -> None:
    """Open a notebook, as high as it is, and wait until all of it is there."""
    page.set_viewport_size({"width": WIDTH, "height": 1000})
    page.goto(f"{lab.url}/doc/tree/{name}?token={lab.token}")
    page.wait_for_function(f"() => document.querySelectorAll('.jp-NotebookPanel .jp-Cell').length === {cells}")
    page.wait_for_function(
        "() => document.body.dataset.jpThemeName && !document.querySelector('.jp-mod-placeholder')"
        " && [...document.images].every((one) => one.complete)"
    )
    height = page.evaluate(
        "() => { const cells = [...document.querySelectorAll('.jp-NotebookPanel .jp-Cell')];"
        " return cells.at(-1).getBoundingClientRect().bottom - cells[0].getBoundingClientRect().top }"
    )
    page.set_viewport_size({"width": WIDTH, "height": min(int(height) + 200, 16_000)})


def look(page: Page, theme: str, screenshot: Path | None) -> object:
    """Switch to a theme, and take a screenshot if there is a place for it; returns what `LOOK` sees."""
    page.evaluate("(name) => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})", THEMES[theme])
    page.wait_for_function("(name) => document.body.dataset.jpThemeName === name", arg=THEMES[theme])
    page.wait_for_function("() => document.fonts.status === 'loaded' && !document.querySelector('#jupyterlab-splash')")
    seen = page.evaluate(LOOK)
    if screenshot is not None:
        page.screenshot(path=screenshot)
    return seen


def main(directory: Path, notebooks: list[Path], *, screenshots: bool) -> None:
    shown = directory / "notebooks"
    shown.mkdir(parents=True)
    for path in notebooks:
        shutil.copy(path, shown)
    seen: dict[str, dict[str, object]] = {}
    with Lab(directory) as lab, sync_playwright() as playwright:
        untrusted = [path.name for path in notebooks if not lab.trusts(path.name)]
        lab.settle()
        browser = playwright.chromium.launch_persistent_context(
            directory / "chromium",
            executable_path=os.environ["CHROMIUM"],
            args=CHROMIUM_ARGUMENTS,
            headless=True,
            chromium_sandbox=False,
        )
        browser.set_default_timeout(START_S * 1000)
        for path in notebooks:
            page = browser.new_page()
            open_notebook(page, lab, path.name, len(json.loads(path.read_text())["cells"]))
            places = {theme: directory / f"{path.stem}-{theme}.png" if screenshots else None for theme in THEMES}
            seen[path.name] = {theme: look(page, theme, place) for theme, place in places.items()}
            page.close()
        browser.close()
    (directory / "seen.json").write_text(json.dumps({"untrusted": untrusted, "seen": seen}))


if __name__ == "__main__":
    given = [one for one in sys.argv[1:] if one != "--screenshots"]
    main(Path(given[0]), [Path(name) for name in given[1:]], screenshots="--screenshots" in sys.argv)
