"""What the demo, the notebooks and the tests play with: real flights and weather (docs: README.md)."""
