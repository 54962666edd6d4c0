"""The HTTP side: metrics, probes, the catalog, what the page reads, and the page.

Everything here reads; nothing can be changed over HTTP. What is told is what the RPCs tell, in the JSON of their
messages with the field names of the .proto files.
"""

from tidegate_server.admin.app import AdminApp, AdminVerbs

__all__ = ["AdminApp", "AdminVerbs"]
