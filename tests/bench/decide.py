"""The decision core's own cost, beside a bare protobuf parse and build of the same call.

The aim (§14 of the contract): a request to a route of four candidates in 15 µs or less, a pinned one in 10 µs or less.
"""

import gc
import statistics
import time
from collections.abc import Callable
from decimal import Decimal

from tidegate.v1 import admission_pb2, types_pb2
from tidegate_server.core.decide import Decision, decide
from tidegate_server.core.facts import FactTable
from tidegate_server.core.model import (
    SECOND,
    Balance,
    Health,
    HealthState,
    Pin,
    Quota,
    Request,
    Tier,
    Verdict,
)
from tidegate_server.core.policy import Candidate, Route
from tidegate_server.testing import fact

NOW = 1000 * SECOND
EFFORTS = ("low", "medium", "high")
ROUNDS, CALLS = 25, 2000
AIM_NEW, AIM_PINNED = 15.0, 10.0


def route() -> Route:
    """The contract's own example: an engine, two subscriptions, a paid model."""
    candidates = (
        Candidate("qwen/flash", "qwen", "flash", Tier.LOCAL, "none", "b1", EFFORTS, session_affinity=True),
        Candidate(
            "claude/sonnet",
            "claude",
            "sonnet",
            Tier.SUBSCRIPTION,
            "claude-oauth:primary",
            "b2",
            EFFORTS,
            required_windows=(("5h", ""), ("7d", "")),
        ),
        Candidate("codex/sol", "codex", "sol", Tier.SUBSCRIPTION, "codex-login:main", "b3", EFFORTS),
        Candidate("or-deepseek", "openrouter", "deepseek", Tier.PAID, "env:KEY", "b4", EFFORTS),
    )
    return Route("managed/routine", "routine", candidates, "f" * 64, 32768, 262144, allow_paid=True)


def facts(engine: HealthState, left: float) -> FactTable:
    """Facts of all four: the engine in that state, and that much left of each window."""
    table = FactTable()
    for one in (
        fact("qwen", "flash", Health(engine, 1, 0, 0.4), now=NOW, age=SECOND),
        fact("claude", "", Quota("5h", left), now=NOW, age=SECOND, ends_in=3600 * SECOND),
        fact("claude", "", Quota("7d", left), now=NOW, age=SECOND, ends_in=86_400 * SECOND),
        fact("codex", "", Quota("5h", left), now=NOW, age=SECOND, ends_in=3600 * SECOND),
        fact("codex", "", Quota("7d", left), now=NOW, age=SECOND, ends_in=86_400 * SECOND),
        fact("openrouter", "", Balance("USD", Decimal("12.5"), available=True), now=NOW, age=SECOND),
    ):
        table.put(one)
    return table


def microseconds(call: Callable[[], object]) -> tuple[float, float]:
    """Best and median processor time of several rounds, per call. The best is what the machine can do."""
    rounds = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            began = time.thread_time_ns()
            for _ in range(CALLS):
                call()
            rounds.append((time.thread_time_ns() - began) / CALLS / 1000)
    finally:
        gc.enable()
    return min(rounds), statistics.median(rounds)


def parse_and_build() -> Callable[[], object]:
    """What any handler of this call pays: parse the request, build and serialize the answer of a pinned admission."""
    worker, candidate = "0190b0a5-5c1f-7c53-9f8e-0a2a2c1d7e11", "qwen/flash"
    body = admission_pb2.AdmitRequest(
        model="managed/routine", worker_id=worker, request_bytes=20_000, reasoning_effort="high"
    ).SerializeToString()

    def call() -> bytes:
        request = admission_pb2.AdmitRequest.FromString(body)
        response = admission_pb2.AdmitResponse(
            verdict=types_pb2.VERDICT_ADMITTED,
            pin_state=types_pb2.PIN_STATE_EXISTING,
            decision_id="0123456789abcdef00000001",
            policy_fingerprint="f" * 64,
            reasoning_effort=request.reasoning_effort,
            binding=types_pb2.Binding(
                candidate=candidate,
                provider="qwen",
                model="flash",
                tier=types_pb2.TIER_LOCAL,
                credential_source="none",
                session_affinity_key=request.worker_id,
            ),
        )
        response.headers.update(
            {
                "x-gateway-upstream": "qwen",
                "x-gateway-upstream-model": "flash",
                "x-gateway-managed-route": request.model,
                "x-gateway-managed-candidate": candidate,
                "x-session-id": request.worker_id,
            }
        )
        return response.SerializeToString()

    return call


def cases() -> dict[str, tuple[Callable[[], Decision], float]]:
    """What is measured, and its aim in microseconds."""
    managed = route()
    request = Request("0190b0a5-5c1f-7c53-9f8e-0a2a2c1d7e11", 20_000, "high")
    candidate = managed.candidates[1]
    pin = Pin(
        b"i" * 32,
        "default",
        managed.name,
        candidate.name,
        candidate.provider,
        candidate.model,
        candidate.tier,
        candidate.credential_source,
        managed.fingerprint,
        candidate.binding_fingerprint,
        0,
    )
    fine = facts(HealthState.HEALTHY, 60.0).groups
    fallback = facts(HealthState.SLEEPING, 60.0).groups
    spent = facts(HealthState.SLEEPING, 0.0).groups
    return {
        "new worker, the first of four is eligible": (lambda: decide(managed, request, None, fine, NOW), AIM_NEW),
        "new worker, the second of four is eligible": (lambda: decide(managed, request, None, fallback, NOW), AIM_NEW),
        "new worker, all four judged, paid with evidence": (
            lambda: decide(managed, request, None, spent, NOW),
            AIM_NEW,
        ),
        "pinned worker": (lambda: decide(managed, request, pin, fine, NOW), AIM_PINNED),
    }


def main() -> int:
    """Print microseconds and ratios; 1 when an aim is missed."""
    base, _ = microseconds(parse_and_build())
    print(f"{'bare protobuf parse + build':50} {base:6.2f} µs")
    missed = 0
    for name, (call, aim) in cases().items():
        assert call().verdict is Verdict.ADMITTED, name
        best, median = microseconds(call)
        word = "ok" if best <= aim else "MISSED"
        print(
            f"{name:50} {best:6.2f} µs (median {median:.2f}), {best / base:.2f} × the baseline; aim {aim:.0f}: {word}"
        )
        missed |= best > aim
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
