"""Checkers: rules that must hold while a cluster runs, and the notes of a run."""
