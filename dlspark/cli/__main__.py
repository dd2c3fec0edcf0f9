"""`python -m dlspark.cli`, the same as the `dlspark` command."""

from dlspark.cli.main import app

app()
