"""Who watches a flow store."""

from collections.abc import Callable

from tidegate_server.core.flow.model import FlowEvent, Listener


class FlowListeners:
    """The listeners of a store, called in the order in which they came."""

    def __init__(self) -> None:
        self._listeners: dict[object, Listener] = {}

    def add(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of every change from now on; return the way to end that."""
        token = object()
        self._listeners[token] = listener

        def end() -> None:
            self._listeners.pop(token, None)

        return end

    def tell(self, event: FlowEvent) -> None:
        """Tell everybody of one change."""
        for listener in tuple(self._listeners.values()):
            listener(event)
