"""The options of the connector: the registry, the kinds of values, what other connectors call them."""
