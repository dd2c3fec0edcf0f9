"""What must hold while a cluster runs, and what is written down of a run."""
