"""Speed, as ratios to what the machine itself can do, measured in one run: `python -m benchmarks`."""
