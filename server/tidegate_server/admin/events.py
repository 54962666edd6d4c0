"""Server-sent events: what happens, while it happens."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TypeVar

from starlette.responses import StreamingResponse

from tidegate_server.admin.answers import Json, error_data, json_bytes
from tidegate_server.errors import TidegateError

Event = TypeVar("Event")

KEEPALIVE_SECONDS = 15.0
"""After so much silence a comment is sent, so that proxies and clients know that the stream lives."""


def stream(events: AsyncIterator[Json], closing: asyncio.Event, may_go_on: Callable[[], bool]) -> StreamingResponse:
    """A response that sends each of `events`, until the client goes, the server closes or its caller may not go on.

    `event` names the kind of each.
    """
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_lines(events, closing, may_go_on), media_type="text/event-stream", headers=headers)


async def _lines(
    events: AsyncIterator[Json], closing: asyncio.Event, may_go_on: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    """The first line goes out at once, so that a client knows that it is connected."""
    closed = asyncio.ensure_future(closing.wait())
    following: asyncio.Future[Json] | None = None
    try:
        yield b": connected\n\n"
        while may_go_on() and not closing.is_set():
            following = following or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait((following, closed), timeout=KEEPALIVE_SECONDS, return_when="FIRST_COMPLETED")
            if following in done and may_go_on():
                event, following = await following, None
                yield b"event: %s\ndata: %s\n\n" % (str(event.pop("event")).encode(), json_bytes(event))
            elif not done:
                yield b": alive\n\n"
    except StopAsyncIteration:
        return
    except TidegateError as error:  # the head of the response is out, so the error is an event
        yield b"event: error\ndata: %s\n\n" % json_bytes(error_data(error))
    finally:
        for task in (closed, following):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in (closed, following) if task is not None), return_exceptions=True)
        if isinstance(events, AsyncGenerator):
            await events.aclose()
