"""What may be forwarded and what never, what the gateway's caller is told, and headers: every case, every client.

The cases of one file run one after the other in one process of the client, as they would in a gateway.
"""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.clients import Json, Kind, Runner, lower, started
from tests.conformance.scripted import Script
from tests.support import vectors

CLIENTS = vectors.DIRECTORY.parent / "clients"
TIMEOUT = 10.0


def document(name: str) -> Json:
    """A file of client vectors."""
    found: Json = json.loads((CLIENTS / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("name", ["fail-closed", "answers-to-the-caller"])
async def test_scripted_answers(
    name: str, kind: Kind, runner: Runner, scripted: tuple[str, Script], tmp_path: Path
) -> None:
    file, failures = document(name), []
    for case in file["cases"]:
        for whole in (False, True) if kind.coalesces else (False,):
            failures += await answered(case, file["request"], whole, kind, runner, scripted[1], tmp_path)
    assert not failures, "\n".join(failures)


async def test_trace_headers(runner: Runner) -> None:
    failures = []
    for case in document("trace-headers")["cases"]:
        if "trace" in case:
            said = await runner.ask("trace", headers=case["headers"])
            failures += differing(said, {"trace": case["trace"]}, case["name"])
        else:
            said = await runner.ask("inject", headers=case["headers"], trace=case["inject"])
            if said["headers"] != lower(case["becomes"]):
                failures.append(f"{case['name']}: {said['headers']}")
    assert not failures, "\n".join(failures)


async def answered(
    case: Json, usual: Json, whole: bool, kind: Kind, runner: Runner, script: Script, directory: Path
) -> list[str]:
    """What does not match when the server answers as the case says."""
    script.play(case["answers"], whole=whole)
    request = vectors.merge_patch(usual, case.get("request", {}))
    operation = {"request": request, "timeout": case.get("timeout", TIMEOUT)}
    if "nobody" in case["answers"][0]:
        async with started(kind, nobody(), directory) as alone:
            said = await alone.ask("admit", **operation)
    else:
        said = await runner.ask("admit", **operation)
    said["calls"] = max(script.calls, script.rides)  # what a batch could not settle is asked alone, from the beginning
    where = f"{case['name']}{' (whole batch)' * whole}"
    return differing(said, case["expect"], where) + travelled(script, case["answers"][0], kind, where)


def travelled(script: Script, first: Json, kind: Kind, where: str) -> list[str]:
    """What is wrong with the way that a request went: in a batch first if the client coalesces, and never else."""
    if "nobody" in first:
        return []
    if bool(script.rides) != kind.coalesces:
        return [f"{where}: {script.rides} batches"]
    if kind.coalesces and "response" in first and script.calls:
        return [f"{where}: was decided in the batch, and asked {script.calls} times alone"]
    return []


def differing(said: Json, expect: Any, where: str) -> list[str]:
    """What does not match. What is forwarded has a binding; what is not, an answer for the caller."""
    try:
        vectors.compare(said, expect, where)
        if "forward" in said:
            assert said["forward"] == ("binding" in said) == ("http" not in said), f"{where}: {said}"
    except AssertionError as error:
        return [str(error)]
    return []


def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
