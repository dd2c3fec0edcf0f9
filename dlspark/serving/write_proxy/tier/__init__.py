"""All write proxies of a namespace together: the placement of streams, their balance and moves."""
