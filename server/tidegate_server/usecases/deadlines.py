"""Work that must not take longer than it may, whatever it does."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tidegate_server.core.model import Nanos
from tidegate_server.ports import Clock

Result = TypeVar("Result")


async def within(clock: Clock, length: Nanos, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`; TimeoutError when it is not there after `length`.

    Work that is late is cancelled and not waited for: what ignores its cancellation costs its caller nothing.
    """
    if length <= 0:
        work.close()
        raise TimeoutError
    task = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock.sleep(length))
    try:
        await asyncio.wait((task, timer), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        timer.cancel()
        if not task.done():
            task.add_done_callback(_look_at)
            task.cancel()


def _look_at(task: asyncio.Task[Any]) -> None:
    """Take the error of work that nobody waits for any more; asyncio would report it as forgotten."""
    if not task.cancelled():
        task.exception()
