"""Programs of clients in a run, each kind with what must hold at its end."""
