"""One worker process: `python -m tidegate_server.wiring.worker WORDS PIPE`, started by the supervisor alone."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys

from tidegate_server.errors import TidegateError
from tidegate_server.wiring import event_loop
from tidegate_server.wiring.clock import SystemClock
from tidegate_server.wiring.run import serve
from tidegate_server.wiring.workers import ALIVE, BEAT_SECONDS, READY, CopiedSource


async def _beat(pipe: int) -> None:
    """Say that the event loop turns, until nobody listens any more: then the supervisor is dead, and so are we."""
    with contextlib.suppress(BlockingIOError):
        while True:
            try:
                os.write(pipe, ALIVE)
            except BrokenPipeError:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            await asyncio.sleep(BEAT_SECONDS)


async def _serve(source: CopiedSource, pipe: int) -> None:
    beating = asyncio.create_task(_beat(pipe))

    def started(_: object) -> None:
        os.write(pipe, READY)

    async def until_all_take_over() -> None:
        clock = SystemClock()
        await clock.sleep(max(0, source.takes_over_at - clock.monotonic()))

    try:
        await serve(source, started=started, worker=until_all_take_over)
    finally:
        beating.cancel()


def main() -> int:
    """Serve until SIGTERM, or until the supervisor is gone."""
    words, pipe = json.loads(sys.argv[1]), int(sys.argv[2])
    logging.basicConfig(
        level=words["log"].upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server takes it: a reload then finds the newest copy
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.set_blocking(pipe, False)
    try:
        event_loop.run(_serve(CopiedSource(words), pipe))
    except TidegateError as error:
        sys.stderr.write(f"tidegate serve: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
