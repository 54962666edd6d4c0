"""Adapters for the store ports. One never imports another's driver, the wire or a use case."""
