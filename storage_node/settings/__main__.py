"""Makes the files that show the settings of the storage floor to people; `files` says which."""

from __future__ import annotations

import argparse

from storage_node.settings.files import bookie_conf, client_page

parser = argparse.ArgumentParser(prog="python -m storage_node.settings", description="Print the settings for people.")
parser.add_argument("--table", action="store_true", help="the page docs/client-settings.md, not conf/bookie.conf")
print(client_page() if parser.parse_args().table else bookie_conf(), end="")
