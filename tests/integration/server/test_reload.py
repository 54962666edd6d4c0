"""A changed configuration is taken over whole or not at all, while the server serves (§2 of the contract)."""

import copy
import json
from pathlib import Path

import pytest
from tidegate.v1 import admission_pb2, flow_pb2, flow_pb2_grpc, operator_pb2, types_pb2
from tidegate_server.core.model import SECOND

from tests.integration.server.harness import (
    CONFIG,
    Json,
    Served,
    bearer,
    failure,
    health,
    identity,
    quota,
    serving,
    until,
)

ADMITTED, REFUSED = types_pb2.VERDICT_ADMITTED, types_pb2.VERDICT_REFUSED


def changed(**of_the_local_route: object) -> Json:
    """The configuration with other settings of `managed/local`."""
    config = copy.deepcopy(CONFIG)
    config["managedRouting"]["routes"]["managed/local"].update(of_the_local_route)
    return config


async def revision_other_than(server: Served, old: str) -> None:
    """Wait for the file's change to be seen, to stand still, and to be taken over; the clock is moved on."""
    await server.fake.advance(2 * SECOND)
    await until(lambda: server.application.policies.current.revision != old)


async def test_a_changed_file_swaps_the_policy_and_orphans_the_pins_of_the_changed_route(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await collector.send(health())
        bound = await server.admit(worker_id="w")
        assert (bound.verdict, bound.pin_state) == (ADMITTED, types_pb2.PIN_STATE_NEW)
        await server.admit("managed/routine", "other")
        before = (await server.status()).configuration_revision
        server.write(changed(minRemainingPercent=15.5))
        await revision_other_than(server, before)
        refused = await server.admit(worker_id="w")
        assert refused.refusal.reason == types_pb2.REFUSAL_REASON_PIN_POLICY_CHANGED
        assert refused.policy_fingerprint != bound.policy_fingerprint
        assert (await server.admit("managed/routine", "other")).pin_state == types_pb2.PIN_STATE_EXISTING
        assert (await server.admit(worker_id="new")).policy_fingerprint == refused.policy_fingerprint
        status = await server.status()
        assert status.configuration_revision != before
        assert status.configuration_error == ""

        server.write(CONFIG)  # the old settings make the old pins good again
        await revision_other_than(server, status.configuration_revision)
        again = await server.admit(worker_id="w")
        assert (again.verdict, again.pin_state) == (ADMITTED, types_pb2.PIN_STATE_EXISTING)
        assert again.policy_fingerprint == bound.policy_fingerprint
        assert (await server.status()).configuration_revision == before


@pytest.mark.parametrize(
    "bad",
    [
        "{not json",
        "",
        json.dumps({"nonsense": 1}),
        json.dumps({"coldWait": "NaN"}),
        json.dumps({**changed(candidates=["nobody/none"]), "listen": "127.0.0.1:0"}),
    ],
    ids=["syntax", "empty", "unknown key", "not a number", "no such candidate"],
)
async def test_a_bad_file_leaves_the_last_good_one_serving_and_shows(tmp_path: Path, bad: str) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await collector.send(health())
        bound = await server.admit(worker_id="w")
        before = (await server.status()).configuration_revision
        (tmp_path / "tidegate.json").write_text(bad)
        await server.fake.advance(2 * SECOND)
        await until(lambda: bool(server.running.source.error))
        status = await server.status()
        assert status.configuration_error
        assert status.configuration_revision == before
        again = await server.admit(worker_id="w")
        assert (again.verdict, again.policy_fingerprint) == (ADMITTED, bound.policy_fingerprint)
        server.write(CONFIG)
        await server.fake.advance(2 * SECOND)
        await until(lambda: not server.running.source.error)
        assert (await server.status()).configuration_error == ""


async def test_what_needs_a_restart_is_refused_as_a_whole(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        before = (await server.status()).configuration_revision
        server.write(changed(maxContextBytes=5), stateDirectory=str(tmp_path / "elsewhere"))
        await server.fake.advance(2 * SECOND)
        await until(lambda: bool(server.running.source.error))
        status = await server.status()
        assert "stateDirectory" in status.configuration_error
        assert status.configuration_revision == before


async def test_other_limits_count_for_the_facts_that_are_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        await collector.send(health(age=10))
        assert (await server.admit(dry_run=True)).verdict == ADMITTED
        before = (await server.status()).configuration_revision
        server.write(CONFIG, freshness={"health": "9s"})
        await revision_other_than(server, before)
        assert (await server.facts())[0].freshness == types_pb2.FRESHNESS_STALE
        assert (await server.admit(dry_run=True)).verdict == REFUSED
        server.write(CONFIG)
        await revision_other_than(server, (await server.status()).configuration_revision)
        assert (await server.admit(dry_run=True)).verdict == ADMITTED


async def test_identities_reload(tmp_path: Path) -> None:
    first = [identity("old", "operator"), identity("stays", "operator")]
    second = [identity("new", "operator"), identity("stays", "operator")]
    async with serving(tmp_path, identities=first) as server:
        request = operator_pb2.GetStatusRequest()
        before = (await server.operator.GetStatus(request, metadata=bearer("old-token"))).configuration_revision
        server.write(CONFIG, identities=second)
        await server.fake.advance(2 * SECOND)
        await until(lambda: server.running.source.generation == 2)
        await until(lambda: server.application.policies.current is server.running.source.policy)
        for name in ("new", "stays"):
            assert (await server.operator.GetStatus(request, metadata=bearer(f"{name}-token"))).features
        end = await failure(server.operator.GetStatus(request, metadata=bearer("old-token")))
        assert end.reason == "CREDENTIAL_INVALID"
        assert before


async def test_a_provider_that_is_gone_and_comes_back(tmp_path: Path) -> None:
    without = copy.deepcopy(CONFIG)
    del without["providers"]["codex"]
    without["managedRouting"]["routes"]["managed/routine"]["candidates"].remove("codex/sol")
    del without["managedRouting"]["routes"]["managed/accounts"]
    async with serving(tmp_path) as server, server.collector() as collector:
        await collector.send(quota("codex", 50))
        await server.admit("managed/accounts", "w")
        before = (await server.status()).configuration_revision
        server.write(without)
        await revision_other_than(server, before)
        assert (
            await failure(server.admission.Admit(admission_pb2.AdmitRequest(model="managed/accounts")))
        ).reason == "MODEL_NOT_FOUND"
        server.write(CONFIG)
        await revision_other_than(server, (await server.status()).configuration_revision)
        again = await server.admit("managed/accounts", "w")
        assert (again.verdict, again.pin_state) == (ADMITTED, types_pb2.PIN_STATE_EXISTING)


async def test_tracestate_keys_rotate_while_flows_run(tmp_path: Path) -> None:
    old, new = ("old.key", bytes(range(32))), ("new.key", bytes(range(100, 132)))
    for name, content in (old, new):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_bytes(content)

    def signed_with(*names: str) -> Json:
        return {**copy.deepcopy(CONFIG), "keys": {"tracestate": [str(tmp_path / name) for name in names]}}

    async with serving(tmp_path, signed_with("old.key")) as server:
        flows = flow_pb2_grpc.FlowServiceStub(server.channel)

        async def enter(caller: str, target: str, tracestate: str = "") -> flow_pb2.EnterHopResponse:
            return await flows.EnterHop(
                flow_pb2.EnterHopRequest(
                    traceparent=f"00-{'a' * 32}-{'b' * 16}-01",
                    tracestate=tracestate,
                    caller_agent=caller,
                    target_agent=target,
                )
            )

        first = (await enter("", "A")).grant.tracestate
        before = (await server.status()).configuration_revision
        server.write(signed_with("new.key", "old.key"))
        await revision_other_than(server, before)
        second = await enter("A", "B", first)
        assert second.verdict == ADMITTED, "what the old key signed still counts"
        before = (await server.status()).configuration_revision
        server.write(signed_with("new.key"))
        await revision_other_than(server, before)
        assert (await enter("B", "C", second.grant.tracestate)).verdict == ADMITTED, "the new key signs"
        forgotten = await enter("A", "D", first)
        assert forgotten.refusal.reason == types_pb2.REFUSAL_REASON_FLOW_UNKNOWN

        (tmp_path / "new.key").write_bytes(b"too short")
        server.running.reload_soon()
        await server.fake.advance(2 * SECOND)
        assert (await enter("B", "E", second.grant.tracestate)).verdict == ADMITTED, "the last good keys serve on"
