"""Who waits for a provider is woken by its news: facts that came, a refresh that ended, a collector that connected."""

import asyncio
from collections.abc import Iterable
from typing import Self


class Changes:
    """Waiters by provider. A wake-up says only that something may have changed; the waiter looks for itself."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def tell(self, providers: Iterable[str]) -> None:
        """Wake everyone who waits for one of these providers."""
        for provider in providers:
            for future in self._waiting.get(provider, ()):
                if not future.done():
                    future.set_result(None)

    def expected(self) -> tuple[str, ...]:
        """The providers that somebody waits for."""
        return tuple(self._waiting)

    def expect(self, providers: Iterable[str]) -> "Expectation":
        """Start listening; what happens from now on is not missed."""
        return Expectation(self._waiting, tuple(providers))


class Expectation:
    """One waiter. Use it as a context manager, so that a cancelled wait leaves nothing behind."""

    def __init__(self, waiting: dict[str, set[asyncio.Future[None]]], providers: tuple[str, ...]) -> None:
        self._waiting = waiting
        self._providers = providers
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Self:
        for provider in self._providers:
            self._waiting.setdefault(provider, set()).add(self.future)
        return self

    def __exit__(self, *_: object) -> None:
        for provider in self._providers:
            waiters = self._waiting[provider]
            waiters.discard(self.future)
            if not waiters:
                del self._waiting[provider]
        self.future.cancel()
