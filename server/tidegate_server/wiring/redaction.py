"""What must not be in a log, whatever an error says: the secrets that this process holds."""

import logging
from collections.abc import Iterable, Mapping
from urllib.parse import unquote, urlsplit

from tidegate_server.config import Configuration

SHORTEST = 6
"""Characters; what is shorter is no secret, and would take half of every line with it."""

HIDDEN = "[hidden]"


class RedactingFormatter(logging.Formatter):
    """Formats as another one does, tracebacks included, and hides the secrets in it."""

    def __init__(self, inner: logging.Formatter, secrets: Iterable[str]) -> None:
        super().__init__()
        self._inner = inner
        self._secrets = sorted({secret for secret in secrets if len(secret) >= SHORTEST}, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        """The line, with no secret in it."""
        text = self._inner.format(record)
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text


def secrets_of(configuration: Configuration, environment: Mapping[str, str]) -> frozenset[str]:
    """Passwords of the stores, as they are written and as they are meant, and the values of the sources `env:NAME`."""
    found: set[str] = set()
    if configuration.stores is not None:
        for url in (configuration.stores.durable, configuration.stores.live):
            password = urlsplit(url.get_secret_value()).password or ""
            found |= {password, unquote(password)}
    chat, embeddings = configuration.selection.chat, configuration.selection.embeddings
    sources = [provider.credential for provider in configuration.providers.values()]
    sources += [endpoint.api_key for endpoint in (chat, embeddings) if endpoint is not None and endpoint.api_key]
    for source in sources:
        kind, _, name = source.partition(":")
        if kind == "env" and name in environment:
            found.add(environment[name])
    return frozenset(found - {""})


def redact_logs(secrets: frozenset[str]) -> None:
    """Hide these in whatever the root logger's handlers write from now on."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(RedactingFormatter(handler.formatter or logging.Formatter(), secrets))
