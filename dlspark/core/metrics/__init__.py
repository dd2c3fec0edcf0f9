"""Metrics, latency warnings, spans and structured logs of the core; docs/metrics.md lists what is measured."""
