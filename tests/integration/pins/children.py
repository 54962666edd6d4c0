"""Starting, driving and killing `child.py`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[3]


class Child:
    """One process with the store of `state` open. Whatever happens, it is gone at the end of the `with` block."""

    def __init__(self, state: Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.pins.child", str(state)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **environment},
            text=True,
        )
        self.greeting = self.hear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def say(self, line: str) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next answer; nothing: it is dead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        # The last line of a killed process may be half a line: nobody was promised anything by it.
        return dict(json.loads(line)) if line.endswith("\n") else {}

    def ask(self, line: str) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.say(line)
        return self.hear()

    def finish(self) -> dict[str, Any]:
        """Let it close the store in good order; its last word."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        last = self.hear()
        self.process.wait(timeout=30)
        return last

    def kill(self) -> list[dict[str, Any]]:
        """kill -9, and everything that it had said by then. Dead is dead: a second call does nothing."""
        assert self.process.stdout is not None
        if self.process.stdout.closed:
            return []
        self.process.kill()
        heard = []
        while answer := self.hear():
            heard.append(answer)
        self.process.wait(timeout=30)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        return heard
