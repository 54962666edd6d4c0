"""The flow guard, composed from the configuration in force."""

import secrets
from collections.abc import Callable

from tidegate_server.config import ConfigurationSource, flow_settings
from tidegate_server.core.flow.ancestry import Keyring
from tidegate_server.core.flow.model import FlowSettings
from tidegate_server.ports import Clock, DecisionLog, FlowStore
from tidegate_server.rpc.flow import FlowVerbs
from tidegate_server.usecases.flow_status import WatchFlows
from tidegate_server.usecases.flows import EnterHop, FlowGuard


class Flows:
    """The guard and its verbs. `apply` takes over other limits; a flow keeps those that it was started with."""

    def __init__(
        self,
        source: ConfigurationSource,
        store: FlowStore,
        keys: tuple[bytes, ...],
        log: DecisionLog,
        clock: Clock,
        new_id: Callable[[], str],
    ) -> None:
        self._source = source
        self._settings = flow_settings(source.configuration)
        self._keyring = Keyring(keys)
        guard = FlowGuard(store, self._current, lambda: self._keyring, new_hop_id)
        self.verbs = FlowVerbs(guard, EnterHop(guard, log, clock, new_id), WatchFlows(store), store)

    def _current(self) -> FlowSettings:
        return self._settings

    def apply(self, keys: tuple[bytes, ...]) -> None:
        """Guard under the source's configuration from now on; the first of the keys signs, all of them verify."""
        self._settings = flow_settings(self._source.configuration)
        self._keyring = Keyring(keys)


def new_hop_id() -> str:
    """16 digits of lower-case hex: a span id of W3C Trace Context, which is never zero."""
    return f"{secrets.randbits(64) or 1:016x}"
