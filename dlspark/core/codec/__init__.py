"""Bytes and columns of records: positions, records, record sets, entries."""
