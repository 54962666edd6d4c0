"""Failures that systems of this kind had in the field, one test each: the right answer here.

Where decision vectors already say it, the test names them, demands that they exist and runs them on the use cases.
"""

import copy
import math
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from tidegate.v1 import admission_pb2, types_pb2
from tidegate_server.config import ConfigurationSource
from tidegate_server.config.load import parse
from tidegate_server.core.model import SECOND
from tidegate_server.errors import ConfigurationError
from tidegate_server.testing import EPOCH
from tidegate_server.wiring.clock import SystemClock

from tests.integration.server.harness import (
    CONFIG,
    Json,
    Served,
    balance,
    blocked,
    failure,
    health,
    quota,
    route,
    serving,
    until,
    write,
)
from tests.support import vectors
from tests.support.drivers import UseCases

ADMITTED, REFUSED = types_pb2.VERDICT_ADMITTED, types_pb2.VERDICT_REFUSED
ACCEPTED, REFUSED_ITEM = types_pb2.OBSERVATION_RESULT_ACCEPTED, types_pb2.OBSERVATION_RESULT_REFUSED
PAID_ROUTE = "managed/accounts"

KNOWN = {str(case): case for path in vectors.files() for case in vectors.cases(path)}


async def hold(tmp_path: Path, *names: str) -> None:
    """Run these vectors; a name that no vector has is a failure."""
    for index, name in enumerate(names):
        directory = tmp_path / str(index)
        directory.mkdir()
        case = KNOWN[name]
        await vectors.run(case, UseCases(case.config, directory), datetime.fromtimestamp(EPOCH / SECOND, UTC))


def with_routes(**routes: Json) -> Json:
    """The configuration with further routes `managed/NAME`."""
    config = copy.deepcopy(CONFIG)
    config["managedRouting"]["routes"].update({f"managed/{name}": value for name, value in routes.items()})
    return config


async def test_case_01_paid_overage_starts_only_when_every_subscription_is_confirmed_spent(tmp_path: Path) -> None:
    config = with_routes(
        both=route("claude/sonnet", "codex/sol", "or-deepseek", allowPaid=True, minRemainingPercent=15)
    )
    config["providers"]["claude"]["requiredWindows"] = ["5h"]
    async with serving(tmp_path, config) as server, server.collector() as collector:
        spent = quota("codex", 0)
        spent.quota.reset_time.FromNanoseconds(EPOCH + 3 * 3600 * SECOND)
        short = blocked("claude", types_pb2.BLOCKER_RATE_LIMITED)
        short.availability.until_time.FromNanoseconds(EPOCH + 30 * SECOND)
        await collector.send(quota("claude", 16), short, spent, balance())  # 84 % used, still above the reserve
        refused = await server.admit("managed/both")
        assert refused.verdict == REFUSED
        assert refused.refusal.retryable
        assert 0 < refused.refusal.retry_delay.seconds <= 30
        assert (refused.refusal.candidate, refused.binding.provider) == ("claude/sonnet", "")
        await collector.send(quota("claude", 15))  # at the reserve: a fresh, confirmed blocker of this one, too
        paid = await server.admit("managed/both")
        assert (paid.verdict, paid.binding.provider) == (ADMITTED, "openrouter")
        assert {e.candidate for e in paid.evidence} == {"claude/sonnet", "codex/sol"}
    await hold(tmp_path, "07-paid-by-default:busy-above-the-reserve", "07-paid-by-default:busy-and-at-the-reserve")


@pytest.mark.parametrize("setting", [{}, {"allowPaid": False}], ids=["left out", "off"])
async def test_case_02_nobody_moves_silently_to_paid(tmp_path: Path, setting: Json) -> None:
    config = with_routes(free=route("codex/sol", "or-deepseek", **setting))
    async with serving(tmp_path, config) as server, server.collector() as collector:
        await collector.send(quota("codex", 50), balance())
        assert (await server.admit("managed/free", "pinned")).binding.provider == "codex"
        await collector.send(quota("codex", 0))
        for worker in ("pinned", "new"):
            assert (await server.admit("managed/free", worker)).verdict == REFUSED
    async with serving(tmp_path, config) as server, server.collector() as collector:  # a restart changes nothing
        await collector.send(quota("codex", 0), balance())
        refused = await server.admit("managed/free", "pinned")
        assert refused.refusal.reason == types_pb2.REFUSAL_REASON_PIN_PROVIDER_UNAVAILABLE
        assert refused.pin_state == types_pb2.PIN_STATE_EXISTING
    await hold(tmp_path, "07-paid-by-default:allow-paid-is-off", "13-pinned-paid-workers:subscription-pin-never-pays")


async def test_case_03_newer_readings_end_a_block_and_older_ones_do_not(tmp_path: Path) -> None:
    await hold(
        tmp_path,
        "04-subscription-windows:new-reading-ends-a-long-block",
        "04-subscription-windows:late-older-reading-does-not",
        "05-availability-rows:longer-block-replaces-a-shorter",
        "05-availability-rows:another-account-is-untouched",
    )
    async with serving(tmp_path) as server, server.collector() as collector:
        row = blocked("codex", types_pb2.BLOCKER_RATE_LIMITED)
        row.availability.until_time.FromNanoseconds(EPOCH + 1 * SECOND)
        await collector.send(quota("codex", 50), row)
        row.availability.until_time.FromNanoseconds(EPOCH + 60 * SECOND)
        row.sequence = 9  # newer
        await collector.send(row)
        await server.fake.advance(2 * SECOND)
        assert (await server.admit(PAID_ROUTE)).verdict == REFUSED
        await server.fake.advance(58 * SECOND)
        assert (await server.admit(PAID_ROUTE)).verdict == ADMITTED


async def test_case_04_the_longest_of_the_blocking_windows_counts_and_scopes_are_kept_apart(tmp_path: Path) -> None:
    async with serving(tmp_path, with_routes(one=route("codex/sol"))) as server, server.collector() as collector:
        week = quota("codex", 0, "7d")
        week.quota.reset_time.FromNanoseconds(EPOCH + 5 * 86_400 * SECOND)
        hours = quota("codex", 90, "5h")
        hours.quota.reset_time.FromNanoseconds(EPOCH + 3600 * SECOND)
        await collector.send(week, hours)
        refused = await server.admit("managed/one")
        assert refused.refusal.retry_delay.seconds == 5 * 86_400
        assert "7d" in refused.refusal.message
    await hold(
        tmp_path,
        "04-subscription-windows:two-windows-at-zero",
        "04-subscription-windows:account-blocks-every-model",
        "04-subscription-windows:model-blocks-itself-alone",
        "09-balances:one-currency-of-two",
    )


@pytest.mark.parametrize(
    ("used", "left"), [(0, 100), (0.5, 99.5), (0.56, 99.44), (1, 99), (1.01, 98.99), (99.9, 0.1), (100, 0), (100.4, 0)]
)
async def test_case_05_a_percentage_is_never_guessed_to_be_a_fraction(tmp_path: Path, used: float, left: float) -> None:
    config = with_routes(one=route("codex/sol", minRemainingPercent=0))
    async with serving(tmp_path, config) as server, server.collector() as collector:
        ack = await collector.send(quota("codex", 100 - used))
        assert ack.results[0].result == ACCEPTED
        (fact,) = await server.facts()
        assert fact.observation.quota.remaining_percent == pytest.approx(left)
        assert (await server.admit("managed/one")).verdict == (ADMITTED if left > 0 else REFUSED)


async def test_case_06_what_is_left_out_is_unknown_and_what_is_zero_is_spent(tmp_path: Path) -> None:
    await hold(
        tmp_path,
        "04-subscription-windows:nothing-said",
        "04-subscription-windows:at-zero",
        "07-paid-by-default:one-number-missing",
        "03-local-health:state-unset",
        "03-local-health:state-of-a-later-version",
    )
    async with serving(tmp_path) as server, server.collector() as collector:
        ack = await collector.send(health(state=77), health(state=-1), health(state=0))
        assert REFUSED_ITEM not in {item.result for item in ack.results}
        assert (await server.admit(dry_run=True)).refusal.reason == types_pb2.REFUSAL_REASON_CAPACITY_UNKNOWN


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
async def test_case_07_what_is_no_number_counts_for_nothing(tmp_path: Path, bad: float) -> None:
    for order in ([0, 1], [1, 0]):
        directory = tmp_path / str(order)
        directory.mkdir()
        async with serving(directory) as server, server.collector() as collector:
            batch = [quota("codex", bad), quota("codex", 3, "7d")]
            ack = await collector.send(*(batch[index] for index in order))
            assert sorted(item.result for item in ack.results) == [ACCEPTED, REFUSED_ITEM]
            answer = await server.admit(PAID_ROUTE, dry_run=True)
            assert answer.binding.candidate == "codex/sol"
            await collector.send(balance(amount="NaN"), balance(amount="Infinity"), balance(amount="-5"))
            assert (await server.admit(PAID_ROUTE, dry_run=True)).binding.candidate == "codex/sol"
    for number in (".nan", ".inf", "-.inf", "-5", "1e999"):
        with pytest.raises(ConfigurationError):
            parse(f"coldWait: {number}")
        with pytest.raises(ConfigurationError):
            parse(f"managedRouting: {{routes: {{r: {{minRemainingPercent: {number}}}}}}}")


@pytest.mark.parametrize("seconds", [1_800_000_000_000, 0, 1, EPOCH // SECOND + 3 * 365 * 86_400, -1, 10**15])
async def test_case_11_an_end_in_another_unit_bounds_the_delay_and_frees_nobody(tmp_path: Path, seconds: int) -> None:
    async with serving(tmp_path, with_routes(one=route("codex/sol"))) as server, server.collector() as collector:
        spent = quota("codex", 0)
        spent.quota.reset_time.seconds = seconds
        await collector.send(spent, balance())
        paid = await server.admit(PAID_ROUTE, dry_run=True)
        alone = (await server.admit("managed/one", dry_run=True)).refusal
        assert alone.retry_delay.seconds <= 400 * 86_400
        if seconds * SECOND <= EPOCH:  # past: unknown until a new fact, neither free nor a reason to pay
            assert paid.refusal.reason == types_pb2.REFUSAL_REASON_CAPACITY_UNKNOWN
            assert alone.reason == types_pb2.REFUSAL_REASON_CAPACITY_UNKNOWN
        else:  # still spent, and so the paid model may be used
            assert alone.reason == types_pb2.REFUSAL_REASON_NO_ELIGIBLE_CANDIDATE
            assert paid.binding.provider == "openrouter"
            assert paid.evidence[0].blocker == types_pb2.BLOCKER_QUOTA_EXHAUSTED


async def test_case_12_stale_engines_are_not_saturated_engines(tmp_path: Path) -> None:
    await hold(tmp_path, "10-order-of-candidates:locals-stale", "10-order-of-candidates:locals-stale-nothing-else")
    async with serving(tmp_path) as server, server.collector("slow", "qwen", interval=20):
        warnings = (await server.status()).warnings
        assert any("every 20 s" in warning and "15 s" in warning for warning in warnings)


async def test_case_16_a_block_never_moves_a_worker_and_a_return_heals_it(tmp_path: Path) -> None:
    await hold(tmp_path, "12-pinned-workers:blocked-then-recovered", "12-pinned-workers:binding-changed")
    async with serving(tmp_path) as server, server.collector() as collector:
        await collector.send(quota("codex", 50))
        first = await server.admit(PAID_ROUTE)
        row = blocked("codex", types_pb2.BLOCKER_RATE_LIMITED)
        row.availability.until_time.FromNanoseconds(EPOCH + 30 * SECOND)
        await collector.send(row)
        refused = await server.admit(PAID_ROUTE)
        assert refused.refusal.reason == types_pb2.REFUSAL_REASON_PIN_PROVIDER_UNAVAILABLE
        assert refused.refusal.retry_delay.seconds == 30
        await server.fake.advance(30 * SECOND)
        again = await server.admit(PAID_ROUTE)
        assert (again.binding, again.pin_state) == (first.binding, types_pb2.PIN_STATE_EXISTING)


async def test_case_18_ids_are_compared_byte_for_byte_or_rejected(tmp_path: Path) -> None:
    await hold(
        tmp_path,
        "01-checks-of-the-request:worker-empty",
        "01-checks-of-the-request:worker-blank",
        "01-checks-of-the-request:worker-with-nul",
        "01-checks-of-the-request:worker-over-256-bytes",
        "01-checks-of-the-request:workers-differ-by-case",
        "01-checks-of-the-request:workers-differ-by-normal-form",
        "01-checks-of-the-request:workers-differ-by-trailing-space",
    )
    async with serving(tmp_path) as server, server.collector() as collector:
        await collector.send(health())
        for worker in ("", " ", "a\0b", "x" * 300, "\x85", "\x7f"):
            request = admission_pb2.AdmitRequest(model="managed/local", worker_id=worker, request_bytes=1)
            end = await failure(server.admission.Admit(request))
            assert (end.code, end.fields) == ("INVALID_ARGUMENT", ["worker_id"])
        for worker in ("W1", "w1", "w1 ", "e\u0301", "\u00e9", "漢" * 85):
            assert (await server.admit(worker_id=worker)).pin_state == types_pb2.PIN_STATE_NEW
            assert (await server.admit(worker_id=worker)).pin_state == types_pb2.PIN_STATE_EXISTING


async def test_case_18_bytes_that_are_no_text_end_in_a_status_of_the_protocol(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        call: Any = server.channel.unary_unary("/tidegate.v1.AdmissionService/Admit")
        for body in (b"\x12\x01\xe7", b"\xff\xff", b"\x0a\x05ab"):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(body)
            assert raised.value.code() is not grpc.StatusCode.OK
            assert "Traceback" not in (raised.value.details() or "")
        assert (await server.admit(dry_run=True)).verdict == REFUSED  # and the server lives


async def test_case_19_a_compaction_may_recover_and_nothing_else_gains_its_allowance(tmp_path: Path) -> None:
    await hold(
        tmp_path,
        "02-bytes-and-compaction:at-the-budget",
        "02-bytes-and-compaction:one-over-the-budget",
        "02-bytes-and-compaction:compaction-gets-four-times",
        "02-bytes-and-compaction:compaction-over-four-times",
        "02-bytes-and-compaction:a-turn-gets-no-allowance",
        "02-bytes-and-compaction:compaction-stays-on-its-pin",
    )


async def test_case_21_sizes_are_bytes(tmp_path: Path) -> None:
    config = with_routes(bytes=route("qwen/qwen-next", maxContextBytes=100_000))
    async with serving(tmp_path, config) as server, server.collector() as collector:
        await collector.send(health())
        over, under = len(("漢" * 40_000).encode()), len(("漢" * 33_333).encode())
        refused = await server.admit("managed/bytes", "a", over)
        assert (refused.refusal.code, refused.suggestion) == ("context_length_exceeded", "20 000 bytes fewer")
        assert (await server.admit("managed/bytes", "a", under)).verdict == ADMITTED
    await hold(tmp_path, "02-bytes-and-compaction:bytes-and-not-characters")
    for settings in ("maxOutputTokens: 16384", "contextWindow: 0", "{}"):
        with pytest.raises(ConfigurationError):
            parse(f"providers: {{p: {{kind: local, credential: none, models: {{m: {{{settings.strip('{}')}}}}}}}}}")
    for budget in ("0", "-1"):
        with pytest.raises(ConfigurationError):
            parse(f"managedRouting: {{routes: {{r: {{candidates: [], contextWindow: 1, maxContextBytes: {budget}}}}}}}")


async def answered_within_50_ms(server: Served) -> bool:
    """Whether one of ten calls is; a machine that is busy with something else may hold a single one up."""
    for index in range(10):
        began = time.monotonic()
        try:
            refused = await server.admit(worker_id=f"w{index}", timeout=0.05)
        except grpc.aio.AioRpcError:
            continue
        assert refused.refusal.reason == types_pb2.REFUSAL_REASON_CAPACITY_UNKNOWN
        if time.monotonic() - began < 0.05:
            return True
    return False


async def test_case_39_deadlines_of_callers_are_kept_and_none_is_needed(tmp_path: Path) -> None:
    async with serving(tmp_path, clock=SystemClock()) as server, server.collector() as collector:
        await server.admission.Catalog(admission_pb2.CatalogRequest())
        assert await answered_within_50_ms(server)  # the cold wait would take 2.5 s
        await collector.asked()
        await server.report(health())
        assert (await server.admit()).verdict == ADMITTED  # no deadline: an ordinary answer
        assert (await server.admit(timeout=1e9)).verdict == ADMITTED
    # What leaks, and how much fits into the trailers (case 41): tests/integration/server/test_errors_and_access.py.


async def test_case_41_a_refusal_of_many_candidates_keeps_its_code(tmp_path: Path) -> None:
    models = {f"model-{index:03}": {"contextWindow": 131072} for index in range(300)}
    config = {
        "providers": {"account": {"kind": "subscription", "credential": "codex-login:main", "models": models}},
        "managedRouting": {"routes": {"managed/all": route(*(f"account/{model}" for model in models))}},
    }
    async with serving(tmp_path, config) as server:
        await server.report(quota("account", 0, "每周"))
        answer = await server.admit("managed/all", "工人", explain=True)
        assert answer.refusal.code == "no_eligible_candidate"
        assert len(answer.evaluations) == 300
        assert "每周" in answer.refusal.message


async def test_case_44_a_second_server_never_shares_the_port(tmp_path: Path) -> None:
    async with serving(tmp_path) as first:
        other = tmp_path / "other"
        other.mkdir()
        with pytest.raises(Exception, match="cannot listen"):
            async with serving(other, with_routes(more=route("qwen/qwen-next")), listen=first.address):
                pass
        for _ in range(20):  # new connections, and all of them reach the first
            async with grpc.aio.insecure_channel(
                first.address, options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                call: Any = channel.unary_unary("/tidegate.v1.AdmissionService/Catalog")
                body = admission_pb2.CatalogRequest(include_hidden=True).SerializeToString()
                models = admission_pb2.CatalogResponse.FromString(await call(body)).models
                assert "managed/more" not in {model.id for model in models}
        await until(lambda: first.application.guard.running == 0)


FINGERPRINT = """
import sys
from tidegate_server.config import ConfigurationSource
policy = ConfigurationSource(sys.argv[1], {}).policy
print(policy.routes["managed/routine"].fingerprint, policy.revision)
"""


def test_case_60_a_fingerprint_is_the_same_in_every_process_and_spelling(tmp_path: Path) -> None:
    config = copy.deepcopy(CONFIG)
    own = config["managedRouting"]["routes"]["managed/routine"]
    own.update(minRemainingPercent=15, paidOn=["QUOTA_EXHAUSTED", "AUTH_FAILED", "PROVIDER_DOWN"])
    path = write(tmp_path, config)
    printed = set()
    for seed in ("1", "2", "3", "4"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = [sys.executable, "-c", FINGERPRINT, str(path)]
        printed.add(subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(printed) == 1
    fingerprint = printed.pop().split()[0]

    def of(**changes: object) -> str:
        again = copy.deepcopy(config)
        settings = again["managedRouting"]["routes"]["managed/routine"]
        settings.update(changes)
        again["managedRouting"]["routes"]["managed/routine"] = dict(reversed(settings.items()))
        return ConfigurationSource(write(tmp_path, again), {}).policy.routes["managed/routine"].fingerprint

    assert of() == fingerprint
    assert of(minRemainingPercent=15.0) == fingerprint
    assert of(paidOn=["PROVIDER_DOWN", "AUTH_FAILED", "QUOTA_EXHAUSTED"]) == fingerprint
    assert of(minRemainingPercent=15.5) != fingerprint
    assert of(allowPaid=False) != fingerprint
    text = path.read_text()
    path.write_bytes(text.replace(", ", ",\r\n").encode())
    assert ConfigurationSource(path, {}).policy.routes["managed/routine"].fingerprint == of(allowPaid=False)
