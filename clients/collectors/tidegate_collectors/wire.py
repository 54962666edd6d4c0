"""Facts as observations of the protocol (tidegate.v1), without their time: how old one is, its sender knows."""

from collections.abc import Iterator
from datetime import datetime
from fnmatch import fnmatchcase

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from tidegate.v1 import types_pb2

from tidegate_collectors.facts import Balance, Blocker, Cleared, Fact, Health, Kind, Quota, Source, State

STATES = {
    State.HEALTHY: types_pb2.HEALTH_STATE_HEALTHY,
    State.UNHEALTHY: types_pb2.HEALTH_STATE_UNHEALTHY,
    State.LOADING: types_pb2.HEALTH_STATE_LOADING,
    State.SLEEPING: types_pb2.HEALTH_STATE_SLEEPING,
}
BLOCKERS = {
    Kind.QUOTA_EXHAUSTED: types_pb2.BLOCKER_QUOTA_EXHAUSTED,
    Kind.AUTH_FAILED: types_pb2.BLOCKER_AUTH_FAILED,
    Kind.ACCOUNT_DISABLED: types_pb2.BLOCKER_ACCOUNT_DISABLED,
    Kind.PROVIDER_DOWN: types_pb2.BLOCKER_PROVIDER_DOWN,
    Kind.RATE_LIMITED: types_pb2.BLOCKER_RATE_LIMITED,
    Kind.OVERLOADED: types_pb2.BLOCKER_OVERLOADED,
}


def observations(fact: Fact, source: Source) -> Iterator[types_pb2.Observation]:
    """Yield what the server is told of a fact.

    Nothing of an advisory, and nothing of a limit of an upstream whose model is unknown: the account is not limited. A
    blocker of a part of the account becomes one of each of the source's models in that part, and where none is known a
    spent window of that scope. The vendor's own trouble is told of all its accounts.
    """
    observation = types_pb2.Observation(provider=fact.provider, model=fact.model)
    if fact.ttl is not None:
        observation.ttl.CopyFrom(duration(fact.ttl))
    if isinstance(fact, Health):
        observation.health.CopyFrom(_health(fact))
    elif isinstance(fact, Quota):
        observation.quota.CopyFrom(_quota(fact))
    elif isinstance(fact, Balance):
        observation.balance.CopyFrom(_balance(fact))
    elif isinstance(fact, Cleared):
        observation.availability.state = types_pb2.AVAILABILITY_STATE_AVAILABLE
        observation.availability.blocker = BLOCKERS[fact.kind]
    elif isinstance(fact, Blocker):
        yield from _blocked(fact, source, observation)
        return
    else:
        return
    yield observation


def duration(seconds: float) -> Duration:
    """Return a length of time of the protocol."""
    return Duration(seconds=int(seconds), nanos=round((seconds - int(seconds)) * 1e9))


def timestamp(instant: datetime) -> Timestamp:
    """Return an instant of the protocol."""
    result = Timestamp()
    result.FromDatetime(instant)
    return result


def _health(fact: Health) -> types_pb2.Health:
    return types_pb2.Health(
        state=STATES[fact.state], running=fact.running, waiting=fact.waiting, kv_usage=fact.kv_usage
    )


def _quota(fact: Quota) -> types_pb2.Quota:
    return types_pb2.Quota(
        window=fact.window,
        scope=fact.scope,
        unlimited=fact.unlimited,
        remaining_percent=fact.remaining,
        reset_time=timestamp(fact.resets_at) if fact.resets_at else None,
    )


def _balance(fact: Balance) -> types_pb2.Balance:
    return types_pb2.Balance(
        currency=fact.currency,
        amount="" if fact.amount is None else f"{fact.amount:f}",
        unlimited=fact.unlimited,
        available=fact.available,
        scope=fact.scope,
        reset_time=timestamp(fact.resets_at) if fact.resets_at else None,
    )


def _blocked(fact: Blocker, source: Source, template: types_pb2.Observation) -> Iterator[types_pb2.Observation]:
    template.availability.state = types_pb2.AVAILABILITY_STATE_BLOCKED
    template.availability.blocker = BLOCKERS[fact.kind]
    if fact.until:
        template.availability.until_time.CopyFrom(timestamp(fact.until))
    if fact.scope:
        yield from _partly_blocked(fact, source, template)
    elif fact.model or not fact.upstream:
        accounts = (fact.provider, *source.siblings) if fact.vendor else (fact.provider,)
        for account in dict.fromkeys(accounts):
            template.provider = account
            yield _copy(template)


def _partly_blocked(fact: Blocker, source: Source, template: types_pb2.Observation) -> Iterator[types_pb2.Observation]:
    pattern = fact.scope.removeprefix("models:")
    models = [model for model in source.models if fnmatchcase(model, pattern)]
    for model in models:
        template.model = model
        yield _copy(template)
    if not models and fact.kind is Kind.QUOTA_EXHAUSTED:
        spent = Quota(provider=fact.provider, window="1d", scope=fact.scope, remaining=0.0, resets_at=fact.until)
        template.quota.CopyFrom(_quota(spent))
        yield template


def _copy(observation: types_pb2.Observation) -> types_pb2.Observation:
    copy = types_pb2.Observation()
    copy.CopyFrom(observation)
    return copy
