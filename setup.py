"""Build entry point; everything is declared in setup.cfg and pyproject.toml, but for the description."""

import configparser
import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
LINK = re.compile(r"\[([^\]]+)\]\((?!\w+:|#)([^)]+)\)")


def description(readme, source=None):
    """Return the README for a package index, which shows no other file of the project.

    Links to files lead to `source`, the project's address, where there is one; else only their words are left, which
    name files of the source distribution.
    """
    if source is None:
        return LINK.sub(lambda link: link[1], readme)
    return LINK.sub(lambda link: f"[{link[1]}]({source.rstrip('/')}/blob/main/{link[2]})", readme)


def source_url():
    """Return the line "Source" of setup.cfg's project_urls; None without one."""
    settings = configparser.ConfigParser()
    settings.read(HERE / "setup.cfg", encoding="utf-8")
    lines = settings["metadata"]["project_urls"].strip().splitlines()
    urls = {name.strip(): url.strip() for name, _, url in (line.partition("=") for line in lines)}
    return urls.get("Source")


if __name__ == "__main__":
    setup(long_description=description((HERE / "README.md").read_text("utf-8"), source_url()))
