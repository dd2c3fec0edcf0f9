"""Build entry point; everything is declared in setup.cfg and pyproject.toml."""

from setuptools import setup

setup()
