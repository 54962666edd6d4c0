"""The load generator (load/main.go): built once, run on a core of its own."""

import functools
import json
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import Message

from tests.bench.serving import LOAD_CORE, Server

SOURCE = Path(__file__).parent / "load"
ADMITTED = "0801"
"""How an AdmitResponse with the verdict ADMITTED begins on the wire, in hex; an EnterHopResponse, too."""


class Load(NamedTuple):
    """What one run of the generator saw. Times in microseconds; `cpu` is the server's own time for one call."""

    per_second: float
    cpu: float
    p50: float
    p99: float
    calls: int


def write_requests(path: Path, requests: Iterable[Message]) -> Path:
    """The requests as the generator reads them."""
    with path.open("wb") as file:
        for request in requests:
            data = request.SerializeToString()
            file.write(struct.pack(">I", len(data)) + data)
    return path


@functools.cache
def program() -> str:
    """The built generator; needs Go."""
    place = Path(tempfile.gettempdir()) / f"tidegate-load-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    binary = place / "load"
    subprocess.run(["go", "build", "-o", str(binary), "."], cwd=SOURCE, check=True)
    return str(binary)


def run(
    server: Server,
    method: str,
    requests: Path,
    *,
    seconds: float = 1.5,
    rate: float = 0,
    calls: int = 0,
    warm_up: float = 0.3,
    in_flight: int = 32,
    begins: str = ADMITTED,
    most_bad: float = 0.0,
) -> Load:
    """Call `method`, and give what was seen. RuntimeError when more of the answers than `most_bad` are wrong."""
    options = {
        "target": server.address, "method": method, "requests": requests, "rate": rate, "calls": calls,
        "in-flight": in_flight, "length": f"{seconds}s", "warm-up": f"{warm_up}s", "begins": begins,
    }  # fmt: skip
    command = [program(), *(f"-{name}={value}" for name, value in options.items())]
    before = server.cpu()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    os.sched_setaffinity(process.pid, {LOAD_CORE})
    output, _ = process.communicate(timeout=120)
    if process.returncode:
        raise RuntimeError(f"the generator failed on {method}")
    used = server.cpu() - before
    seen = json.loads(output)
    if seen["bad"] > most_bad * seen["calls"]:
        raise RuntimeError(
            f"{method}: {seen['bad']} of {seen['calls']} answers were not what they should be: {seen['first_bad']}"
        )
    measured = seen["seconds"] / (seen["seconds"] + warm_up)  # of the time; of the calls about as many
    return Load(seen["per_second"], used * measured / seen["calls"] * 1e6, seen["p50"], seen["p99"], seen["calls"])
