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
    """What the caller named does not exist. `kind` is what it is: model, pin, flow, agent, decision."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f'there is no {kind} "{name}"')
        self.kind = kind


class StoreUnavailable(TidegateError):
    """A store could not be read or written in time; nothing is known of what it would have answered.

    `store` is what it holds: pins, facts, flows, agents, decisions.
    """

    def __init__(self, store: str) -> None:
        super().__init__(f"the store of {store} is unavailable")
        self.store = store


class ProviderFailed(TidegateError):
    """An endpoint of agent selection gave no usable answer. It never reaches a caller: the stage falls forward (§9).

    `cause` may be shown and logged: it holds no address, no key and nothing that the endpoint sent.
    """

    def __init__(self, cause: str, *, tokens: tuple[int, int] = (0, 0)) -> None:
        super().__init__(cause)
        self.cause = cause
        self.tokens = tokens


class Overloaded(TidegateError):
    """This server protects itself; the same call may pass a moment later."""


class NotImplementedYet(TidegateError):
    """The contract names it, this version does not have it."""


class Unauthenticated(TidegateError):
    """The call needs an identity, and none or an invalid one was given."""


class PermissionDenied(TidegateError):
    """The caller's identity may not do this."""


class NotOwned(PermissionDenied):
    """The agent belongs to another owner, who alone may replace or remove it."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(f'the agent "{agent_id}" belongs to another owner')
        self.agent_id = agent_id


class UnsafeState(TidegateError):
    """What lies in the state directory must not be used: the server refuses to start, and changes nothing."""


class ConfigurationError(TidegateError):
    """A configuration has faults; each names its path."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)
