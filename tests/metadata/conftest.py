"""Fixtures for the tests of metadata: each store, and a fresh znode of the test's own on it."""

from __future__ import annotations

import pytest
from helpers.worlds.metadata import MetadataServer

from metadata.store import MetadataStore


@pytest.fixture
async def store(metadata_server: MetadataServer) -> MetadataStore:
    return await metadata_server.open()


@pytest.fixture
async def other(metadata_server: MetadataServer) -> MetadataStore:
    """Open a second session on the same server."""
    return await metadata_server.open()


@pytest.fixture
def root(metadata_server: MetadataServer) -> str:
    """Give a znode of this test alone."""
    return metadata_server.root
