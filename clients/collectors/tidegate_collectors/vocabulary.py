"""Facts as plain JSON, in the vocabulary of the signal vectors, and their comparison with what was expected.

It says more than the wire does (reasons, clamped raw values, clock skew, single engines), for people and for tests.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from tidegate_collectors.facts import Advisory, Balance, Blocker, Cleared, Engine, Fact, Health, Quota, State
from tidegate_collectors.numeric import number
from tidegate_collectors.times import isoformat

PERCENT_TOLERANCE = Decimal("0.01")
_TOLERANT = frozenset({"remaining_pct", "raw_used", "kv_used", "vram_fraction"})
_TIMES = frozenset({"resets_at", "until", "unload_at", "observed_at"})
_REMARKS = frozenset({"note", "source"})
"""Keys of an expectation that are for its reader."""
_EXTRA = frozenset({"reason", "window", "observed_at", "model", "ttl_s"})
"""Keys that a fact may have beyond its expectation, since they only explain it."""

Record = dict[str, Any]


def record(fact: Fact) -> Record:
    """Return a fact as JSON; what is unknown is left out, save where null is an answer (`until`, `resets_at`)."""
    writer = _WRITERS[type(fact)]
    tail = {
        "ttl_s": _plain(fact.ttl),
        "reason": fact.reason or None,
        "clock_skew_s": _plain(fact.skew),
        "observed_at": isoformat(fact.observed_at) if fact.observed_at else None,
    }
    return {**writer(fact), **{key: value for key, value in tail.items() if value is not None}}


def differences(expected: Sequence[Mapping[str, Any]], actual: Sequence[Record]) -> list[str]:
    """Return what is wrong with `actual`, one sentence a fault; nothing when it is exactly what was expected."""
    left = list(actual)
    faults = []
    for want in expected:
        nearest = min(left, key=lambda have: len(_unlike(want, have)), default=None)
        if nearest is None:
            faults.append(f"missing: {dict(want)}")
            continue
        left.remove(nearest)
        faults += [f"{want['fact']} {_subject(want)}: {fault}" for fault in _unlike(want, nearest)]
    return faults + [f"not expected: {have}" for have in left]


def _health(fact: Health) -> Record:
    return {
        "fact": "health",
        "target": fact.provider,
        "model": fact.model,
        "healthy": fact.state is State.HEALTHY,
        **_known(
            running=fact.running,
            waiting=fact.waiting,
            kv_used=fact.kv_usage,
            waiting_capacity=fact.waiting_capacity,
            engines=[_engine(engine) for engine in fact.engines] or None,
            slots_total=fact.slots_total,
            slots_free=fact.slots_free,
            loaded=fact.loaded,
            vram_fraction=fact.vram_fraction,
            unload_at=fact.unload_at and isoformat(fact.unload_at),
        ),
    }


def _engine(engine: Engine) -> Record:
    values = _known(running=engine.running, waiting=engine.waiting, kv_used=engine.kv_usage)
    return {"engine": engine.engine, **values}


def _quota(fact: Quota) -> Record:
    return {
        "fact": "quota",
        "account": fact.provider,
        "window": fact.window,
        "remaining_pct": fact.remaining,
        "resets_at": isoformat(fact.resets_at) if fact.resets_at else None,
        **_known(
            scope=fact.scope or None,
            raw_used=_plain(fact.raw_used),
            unlimited=fact.unlimited or None,
            model=fact.model or None,
        ),
    }


def _balance(fact: Balance) -> Record:
    return {
        "fact": "balance",
        "account": fact.provider,
        "scope": fact.scope or "account",
        "currency": fact.currency,
        "amount": None if fact.amount is None else f"{fact.amount:f}",
        "available": fact.available,
        **_known(unlimited=fact.unlimited or None, resets_at=isoformat(fact.resets_at) if fact.resets_at else None),
    }


def _blocker(fact: Blocker) -> Record:
    parts = [fact.vendor or fact.provider]
    parts += [fact.scope] if fact.scope else []
    parts += [f"provider:{fact.upstream}"] if fact.upstream else []
    parts += [f"model:{fact.model}"] if fact.model else []
    return {
        "fact": "blocker",
        "subject": "/".join(parts),
        "kind": str(fact.kind),
        "until": isoformat(fact.until) if fact.until else None,
        **_known(window=fact.window or None),
    }


def _cleared(fact: Cleared) -> Record:
    return {"fact": "cleared", "subject": fact.provider, "kind": str(fact.kind)}


def _advisory(fact: Advisory) -> Record:
    components = [{"name": name, "status": status} for name, status in fact.components]
    return {"fact": "advisory", "subject": fact.provider, "indicator": fact.indicator, "components": components}


_WRITERS: dict[type[Fact], Callable[[Any], Record]] = {
    Health: _health,
    Quota: _quota,
    Balance: _balance,
    Blocker: _blocker,
    Cleared: _cleared,
    Advisory: _advisory,
}


def _known(**values: object) -> Record:
    return {key: value for key, value in values.items() if value is not None}


def _plain(value: float | None) -> float | None:
    """Write whole numbers without a fraction."""
    return int(value) if value is not None and value == int(value) else value


def _subject(fact: Mapping[str, Any]) -> str:
    names = ("target", "account", "subject", "window", "scope", "currency", "kind")
    return " ".join(str(fact[name]) for name in names if name in fact)


def _unlike(want: Mapping[str, Any], have: Record) -> list[str]:
    keys = [key for key in want if key not in _REMARKS]
    faults = [
        f"{key}: expected {want[key]!r}, got {have.get(key)!r}"
        for key in keys
        if not _same(key, want[key], have.get(key))
    ]
    return faults + [f"{key}: not expected, got {have[key]!r}" for key in have if key not in want and key not in _EXTRA]


def _same(key: str, want: object, have: object) -> bool:
    if want is None or have is None:
        return want is have
    if key in _TIMES and isinstance(want, str) and isinstance(have, str):
        return datetime.fromisoformat(want) == datetime.fromisoformat(have)
    if isinstance(want, list) and isinstance(have, list):
        return len(want) == len(have) and not any(_unlike(a, b) for a, b in zip(want, have, strict=True))
    if key == "amount" or not isinstance(want, str | bool):
        wanted, got = number(want), number(have)
        if wanted is not None and got is not None:
            return abs(wanted - got) <= (PERCENT_TOLERANCE if key in _TOLERANT else 0)
    return want == have
