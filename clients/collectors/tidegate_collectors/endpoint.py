"""A small HTTP/1.1 server for this machine: the process's own metrics and health, and the observer."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import h11
from tidegate.credentials import is_local

from tidegate_collectors.payload import MAX_BODY

LIMIT = 10.0
"""Seconds that one request may take from its first byte to its answer."""
CONNECTIONS = 64
_READ = 65_536


class Request(NamedTuple):
    """A request, header names in lower case."""

    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    """What a handler answers."""

    status: int
    body: bytes
    content_type: str = "application/json"


Handler = Callable[[Request], Awaitable[Answer]]


class Endpoint:
    """Serves a few routes, one request a connection."""

    def __init__(self, routes: Mapping[tuple[str, str], Handler]) -> None:
        self._routes = routes
        self._places = asyncio.Semaphore(CONNECTIONS)

    async def start(self, address: str) -> asyncio.Server:
        """Listen on `host:port` of this machine; ValueError for any other."""
        if not is_local(address):
            raise ValueError(f"{address} is not on this machine")
        host, _, port = address.rpartition(":")
        return await asyncio.start_server(self._serve, host.strip("[]"), int(port))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        try:
            async with self._places, asyncio.timeout(LIMIT):
                answer = await self._answer(connection, reader)
                for event in _events(answer):
                    writer.write(connection.send(event) or b"")
                await writer.drain()
        except (TimeoutError, OSError, h11.ProtocolError):
            return
        finally:
            writer.close()

    async def _answer(self, connection: h11.Connection, reader: asyncio.StreamReader) -> Answer:
        head, body = None, bytearray()
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError as error:
                return Answer(error.error_status_hint, b"")
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(_READ))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_BODY:
                    return Answer(413, b"")
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return await self._routed(head, bytes(body))
            else:
                return Answer(400, b"")

    async def _routed(self, head: h11.Request, body: bytes) -> Answer:
        path = head.target.decode("ascii", "replace").partition("?")[0]
        handler = self._routes.get((head.method.decode("ascii", "replace"), path))
        if handler is None:
            known = any(path == route for _, route in self._routes)
            return Answer(405 if known else 404, b"")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in head.headers}
        return await handler(Request(headers, body))


def _events(answer: Answer) -> list[h11.Event]:
    headers = [
        ("content-type", answer.content_type),
        ("content-length", str(len(answer.body))),
        ("connection", "close"),
    ]
    return [h11.Response(status_code=answer.status, headers=headers), h11.Data(data=answer.body), h11.EndOfMessage()]
