"""Makes the page that shows the metrics to people: python -m dlspark.core.metrics > docs/metrics.md"""

from __future__ import annotations

from dlspark.core.metrics.page import metrics_page

print(metrics_page(), end="")
