"""Faults: `Nemesis`, which breaks things, and the coverage points that a suite of runs must have reached."""
