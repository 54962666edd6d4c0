"""Who may read what over HTTP (§13 of the contract): the identities of the gRPC side, shown as bearer tokens.

Without `identities` a program on this machine may read without a token, as it may admit without one. A browser there is
asked for a bit more: its request must name this machine as the host, so that no foreign page can reach it by a name of
its own that resolves to loopback.
"""

import ipaddress
from collections.abc import Callable

from starlette.requests import Request

from tidegate_server.core.model import Caller
from tidegate_server.errors import RoleNotAllowed
from tidegate_server.rpc.access import COLLECTOR, GATEWAY, OPERATOR, VIEWER, Access
from tidegate_server.usecases.identify import Identify

READERS = Access((GATEWAY, OPERATOR, VIEWER))
ANYBODY = Access((GATEWAY, COLLECTOR, OPERATOR, VIEWER))
IDENTIFIED = Access((GATEWAY, OPERATOR, VIEWER), identity_always=True)


class Doorkeeper:
    """Finds the caller of a request. `is_local`: only this machine reaches the listener."""

    def __init__(self, identify: Callable[[], Identify], *, is_local: bool) -> None:
        self._identify = identify
        self._is_local = is_local

    def admit(self, request: Request, access: Access) -> Caller:
        """The caller; raises IdentityRequired, CredentialInvalid, RoleNotAllowed."""
        is_open = self._is_local and not access.identity_always and names_this_machine(request.headers.get("host", ""))
        caller = self._identify()(request.headers.get("authorization", ""), (), identity_needed=not is_open)
        if caller.roles.isdisjoint(access.roles):
            raise RoleNotAllowed(access.roles)
        return caller

    def knows(self, caller: Caller) -> bool:
        """Whether that caller is still somebody: a stream ends when its credential does."""
        return self._identify().knows(caller)


def names_this_machine(host: str) -> bool:
    """Whether a Host header is a loopback address or localhost, with or without a port."""
    name = host.removesuffix("]").rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
