"""Bookies in the test's process, disks that fail or lose power, and peers that send damaged frames."""
