"""`python -m dlspark.core.settings` prints conf/distributedlog.conf."""

from dlspark.core.settings.table import configuration_file

print(configuration_file(), end="")
