"""Certificates for tests."""
