"""HTTP/2 as bytes: a client that pings as often as it likes, and a relay that sees what goes over a connection."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1
ENHANCE_YOUR_CALM = 11
PATIENCE = 20.0


class Frame(NamedTuple):
    """A frame of HTTP/2 (RFC 9113, section 4)."""

    kind: int
    flags: int
    payload: bytes

    @property
    def is_ping(self) -> bool:
        """A ping, not the answer to one."""
        return self.kind == PING and not self.flags & ACK


def encode(kind: int, flags: int = 0, payload: bytes = b"") -> bytes:
    """A frame of the connection itself (stream 0)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, 0) + payload


async def read(reader: asyncio.StreamReader) -> tuple[Frame, bytes]:
    """The next frame, and its bytes."""
    head = await reader.readexactly(9)
    payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
    return Frame(head[3], head[4], payload), head + payload


async def ping(address: str, interval: float, count: int) -> tuple[int, int | None]:
    """Ping at this interval (s), with no call open.

    Returns how many were answered, and the error of the GOAWAY if one came: then no more are sent.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(PREFACE + encode(SETTINGS))
    answered, error = 0, None
    pinging = asyncio.create_task(_pings(writer, interval, count))
    try:
        async with asyncio.timeout(interval * count + PATIENCE):
            while answered < count and error is None:
                frame, _ = await read(reader)
                if frame.kind == SETTINGS and not frame.flags & ACK:
                    writer.write(encode(SETTINGS, ACK))
                elif frame.kind == PING and frame.flags & ACK:
                    answered += 1
                elif frame.is_ping:
                    writer.write(encode(PING, ACK, frame.payload))
                elif frame.kind == GOAWAY:
                    error = int.from_bytes(frame.payload[4:8], "big")
    finally:
        pinging.cancel()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return answered, error


async def _pings(writer: asyncio.StreamWriter, interval: float, count: int) -> None:
    for number in range(count):
        await asyncio.sleep(interval)
        writer.write(encode(PING, 0, number.to_bytes(8, "big")))


@dataclass
class Relay:
    """What went over the connections to one server."""

    address: str = ""
    connections: int = 0
    pings: int = 0
    """Pings of clients."""
    errors: list[int] = field(default_factory=list)
    """The error of each GOAWAY of the server; 0 is an orderly end."""


@asynccontextmanager
async def relay(target: str) -> AsyncIterator[Relay]:
    """A relay in front of a server that speaks HTTP/2 in clear."""
    seen, running = Relay(), set[asyncio.Task[None]]()
    host, _, port = target.rpartition(":")

    async def upward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(PREFACE)))
        while True:
            frame, raw = await read(reader)
            seen.pings += frame.is_ping
            writer.write(raw)

    async def downward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame, raw = await read(reader)
            if frame.kind == GOAWAY:
                seen.errors.append(int.from_bytes(frame.payload[4:8], "big"))
            writer.write(raw)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        ends = [asyncio.create_task(upward(reader, there_writer)), asyncio.create_task(downward(there_reader, writer))]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            writer.close()
            there_writer.close()
            running.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    seen.address = "{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield seen
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
