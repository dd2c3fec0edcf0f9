"""How a client chooses the proxy that it asks: hashing, the ring, and other routes. No I/O."""
