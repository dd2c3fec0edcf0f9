"""Makes the files that show the settings to people.

python -m dlspark.core.settings > conf/distributedlog.conf
python -m dlspark.core.settings --table > docs/settings.md
"""

from __future__ import annotations

import argparse

from dlspark.core.settings.page import settings_page
from dlspark.core.settings.table import configuration_file

parser = argparse.ArgumentParser(prog="python -m dlspark.core.settings", description="Print the settings for people.")
parser.add_argument("--table", action="store_true", help="as the page docs/settings.md, not as a properties file")
print(settings_page() if parser.parse_args().table else configuration_file(), end="")
