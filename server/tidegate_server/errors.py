"""The product's errors. No status codes here: `rpc/status.py` is the one place that maps them to the wire.

A message may reach a caller. It names what is wrong in the caller's words, and never holds a driver's text, a path, a
data source name or a secret.
"""

from collections.abc import Sequence
from typing import NamedTuple


class TidegateError(Exception):
    """The base of every error that the product raises on purpose."""


class FieldViolation(NamedTuple):
    """One fault of a request: the field's path on the wire, and what is wrong with it."""

    field: str
    description: str


class InvalidRequest(TidegateError):
    """The request is malformed: a rejection, never a policy answer."""

    def __init__(self, violations: Sequence[FieldViolation]) -> None:
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in violations))
        self.violations = tuple(violations)


class NotFound(TidegateError):
    """What the caller named does not exist. `kind` is what it is: model, provider, pin, flow, hop, agent, decision."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f'there is no {kind} "{name}"')
        self.kind = kind
        self.name = name


class StoreUnavailable(TidegateError):
    """A store could not be read or written in time; nothing is known of what it would have answered.

    `store` is what it holds: pins, facts, flows, agents, decisions.
    """

    def __init__(self, store: str) -> None:
        super().__init__(f"the store of {store} is unavailable")
        self.store = store


class ShuttingDown(TidegateError):
    """The server drains: the call may go to another replica, or to this one after its restart."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class FeedReplaced(TidegateError):
    """A newer stream of the same identity and collector took over; this one ends."""

    def __init__(self, collector: str) -> None:
        super().__init__(f'a newer stream of the collector "{collector}" replaced this one')
        self.collector = collector


class Overloaded(TidegateError):
    """This server protects itself; the same call may pass a moment later. `what` is what there is too much of."""

    def __init__(self, what: str = "calls") -> None:
        super().__init__(f"too many {what} at once")
        self.what = what


class NotImplementedYet(TidegateError):
    """The contract names it, this version does not have it."""


class IdentityRequired(TidegateError):
    """The call needs an identity, and none was given."""

    def __init__(self) -> None:
        super().__init__("this call needs an identity: a client certificate, or metadata `authorization: Bearer …`")


class CredentialInvalid(TidegateError):
    """A credential was given, and no identity has it."""

    def __init__(self) -> None:
        super().__init__("the credential belongs to no identity")


class RoleNotAllowed(TidegateError):
    """The caller's role does not include this call."""

    def __init__(self, roles: Sequence[str]) -> None:
        super().__init__(f"this call needs the role {' or '.join(roles)}")
        self.roles = tuple(roles)


class ProviderNotAllowed(TidegateError):
    """The collector's identity does not speak for this provider."""

    def __init__(self, provider: str) -> None:
        super().__init__(f'this identity may not feed facts of the provider "{provider}"')
        self.provider = provider


class FlowStartNotAllowed(TidegateError):
    """The caller's identity may not start a flow: its hops need a caller_agent."""

    def __init__(self) -> None:
        super().__init__("this identity may not start flows (startFlows)")


class AgentNotOwned(TidegateError):
    """Somebody else registered this agent."""

    def __init__(self, agent: str) -> None:
        super().__init__(f'the agent "{agent}" belongs to another owner')
        self.agent = agent


class ProviderFailed(TidegateError):
    """An endpoint of agent selection gave no usable answer. It never reaches a caller: the stage falls forward (§9).

    `cause` may be shown and logged: it holds no address, no key and nothing that the endpoint sent. `tokens` are the
    input and output tokens that the failed call was billed for all the same.
    """

    def __init__(self, cause: str, *, tokens: tuple[int, int] = (0, 0)) -> None:
        super().__init__(cause)
        self.cause = cause
        self.tokens = tokens


class UnsafeState(TidegateError):
    """What lies in the state directory must not be used: the server refuses to start, and changes nothing."""


class ConfigurationError(TidegateError):
    """A configuration has faults; each names its path."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)
