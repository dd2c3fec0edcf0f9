"""Data for the demo, the notebooks and the tests: real flights and weather (docs: README.md)."""
