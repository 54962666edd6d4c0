"""Every decision vector through every client, on a real server: what the client passes on is what was decided."""

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.clients import Json, Kind, Runner, started
from tests.conformance.test_answers import TIMEOUT, differing, document
from tests.support import drivers, vectors

FORWARD = ("VERDICT_ADMITTED", "VERDICT_BYPASSED")


class ThroughClient(drivers.Server):
    """A running server whose decisions are asked for by the client under test."""

    runner: Runner

    async def admit(self, request: Json) -> Json | vectors.Rejected:
        """See Driver. Whether it forwards is told by the verdict alone; nothing goes out on a dry run."""
        said = await self.runner.ask("admit", request=request, timeout=TIMEOUT)
        verdict = said.get("response", {}).get("verdict")
        assert said["forward"] == (verdict in FORWARD and not request.get("dryRun")), said
        return decided(said)

    async def pin(self, request: Json) -> Json | vectors.Rejected:
        """See Driver."""
        return decided(await self.runner.ask("pin", request=request, timeout=TIMEOUT))


def decided(said: Json) -> Json | vectors.Rejected:
    """The response, or the status."""
    if "response" in said:
        response: Json = said["response"]
        return response
    return vectors.Rejected(said["error"]["status"], said["error"]["fields"])


@pytest.mark.parametrize("path", vectors.files(), ids=lambda path: path.stem)
async def test_decisions(path: Path, kind: Kind, tmp_path: Path) -> None:
    cases = [case for case in vectors.cases(path) if "corruptPin" not in case.needs]
    collectors = {step.get("collector", "default") for case in cases for step in case.steps}
    async with AsyncExitStack() as stack:
        server = await ThroughClient.start(cases[0].config, tmp_path, stack)
        assert isinstance(server, ThroughClient)
        server.runner = await stack.enter_async_context(through(kind, server, tmp_path))
        for case in cases:
            await vectors.run(case, server, datetime.now(UTC))
            if "reload" in case.needs:
                await server.reload(case.config)
            for collector in collectors:
                await server.report(collector, [], {})


async def test_hops(kind: Kind, tmp_path: Path) -> None:
    file, failures = document("hops"), []
    async with AsyncExitStack() as stack:
        server = await ThroughClient.start(file["config"], tmp_path, stack)
        runner = await stack.enter_async_context(through(kind, server, tmp_path))
        for case in file["cases"]:
            failures += await walk(case, runner)
    assert not failures, "\n".join(failures)


async def walk(case: Json, runner: Runner) -> list[str]:
    """Run the steps of a case; what does not match."""
    steps: dict[str, Json] = {}
    failures = []
    for number, step in enumerate(case["steps"]):
        headers = headers_of(step.get("headers", []), steps)
        if "enter" in step:
            said = await runner.ask("enterHop", request=step["enter"], headers=headers, timeout=TIMEOUT)
        elif "admit" in step:
            said = await runner.ask("admit", request=step["admit"], headers=headers, timeout=TIMEOUT)
        else:
            op, settled = ("exitHop", step["exit"]) if "exit" in step else ("recordTokens", step["record"])
            hop = hop_id(steps[settled["of"]])
            said = await runner.ask(op, hop=hop, tokens=settled["tokens"], success=settled.get("success", False))
        steps[step.get("as", "")] = said
        failures += differing(said, step["expect"], f"{case['name']}[{number}]")
    return failures


def hop_id(said: Json) -> str:
    """The hop that a step entered, alone or with an admission."""
    response = said["response"]
    grant: Json = response.get("hop", response)
    return str(grant["hopId"])


def headers_of(named: Any, steps: dict[str, Json]) -> list[list[str]]:
    """The headers of a step."""
    if isinstance(named, list):
        return named
    headers = dict(steps[named["of"]]["headers"])
    if "span" in named:
        version, trace_id, _, flags = headers["traceparent"].split("-")
        headers["traceparent"] = "-".join((version, trace_id, named["span"], flags))
    return [list(pair) for pair in headers.items()]


def through(kind: Kind, server: drivers.Server, directory: Path) -> Any:
    """The client's runner, speaking to this server with its local token."""
    return started(kind, str(server._running.addresses[0]), directory, directory / "state/local.token")
