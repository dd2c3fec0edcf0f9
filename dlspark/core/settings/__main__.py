"""Makes the files that show the settings to people; `pages` says which."""

from __future__ import annotations

import argparse

from dlspark.core.settings.pages import configuration_file, settings_page

parser = argparse.ArgumentParser(prog="python -m dlspark.core.settings", description="Print the settings for people.")
parser.add_argument("--table", action="store_true", help="as the page docs/settings.md, not as a properties file")
print(settings_page() if parser.parse_args().table else configuration_file(), end="")
