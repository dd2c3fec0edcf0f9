"""All write proxies of a namespace together: where streams belong, how they are balanced and moved."""
