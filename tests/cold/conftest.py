"""Fixtures of the tests of cold storage."""

from __future__ import annotations

from helpers.cold.fixtures import moto, moto_place, place, seaweed, seaweed_place

__all__ = ["moto", "moto_place", "place", "seaweed", "seaweed_place"]
