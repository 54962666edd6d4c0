"""The composition root: the one place that knows every part."""

from tidegate_server.wiring.run import serve

__all__ = ["serve"]
