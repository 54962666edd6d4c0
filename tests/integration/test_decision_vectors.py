"""Every decision vector, on the use cases alone and on a running server over the wire."""

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tidegate_server.core.model import SECOND, RefusalReason
from tidegate_server.testing import EPOCH

from tests.support import vectors
from tests.support.drivers import Server, UseCases
from tests.support.vectors import Case

FILES = vectors.files()
CASES = [case for path in FILES for case in vectors.cases(path)]


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_use_cases_decide_as_the_vector_says(case: Case, tmp_path: Path) -> None:
    await vectors.run(case, UseCases(case.config, tmp_path), datetime.fromtimestamp(EPOCH / SECOND, UTC))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_a_running_server_decides_as_the_vectors_say(path: Path, tmp_path: Path) -> None:
    cases = [case for case in vectors.cases(path) if "corruptPin" not in case.needs]
    collectors = {step.get("collector", "default") for case in cases for step in case.steps}
    async with AsyncExitStack() as stack:
        server = await Server.start(cases[0].config, tmp_path, stack)
        for case in cases:
            await vectors.run(case, server, datetime.now(UTC))
            if "reload" in case.needs:
                await server.reload(case.config)
            for collector in collectors:
                await server.report(collector, [], {})


def test_every_reason_that_needs_no_flow_has_a_vector() -> None:
    expected = {
        step["expect"].get("refusal", {}).get("reason") for case in CASES for step in case.steps if "expect" in step
    }
    reachable = [reason for reason in RefusalReason if reason < RefusalReason.FLOW_UNKNOWN]
    assert {f"REFUSAL_REASON_{reason.name}" for reason in reachable} <= expected
