"""Tidegate: the admission service that gateways call before they spend a token."""

__version__ = "0.1.0"
