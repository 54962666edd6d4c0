"""`tidegate admit`, `capacity` and `catalog`: ask a server what a gateway asks."""

import argparse
from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration
from tidegate.v1 import admission_pb2, types_pb2

from tidegate_server.cli.common import (
    Commands,
    add_server_options,
    client,
    print_json,
    print_message,
    print_table,
    short_name,
)


def add_arguments(commands: Commands) -> None:
    """Add the commands."""
    admit = commands.add_parser("admit", help="one decision; exit 0 when the work may start")
    admit.add_argument("model", metavar="MODEL", help="a route or an explicit model")
    admit.add_argument("worker_id", metavar="WORKER", nargs="?", default="", help="the conversation's stable id")
    admit.add_argument(
        "--request-bytes", type=int, default=0, metavar="N", help="exact size of the serialized request (default: 0)"
    )
    admit.add_argument("--reasoning-effort", default="", metavar="E", help="reasoning effort")
    admit.add_argument("--tenant", default="", metavar="T", help="part of the pin's key")
    admit.add_argument("--provider-state", default="", metavar="P", help="whose opaque state the request carries")
    admit.add_argument("--input-modality", action="append", default=[], metavar="M", help="may be repeated")
    admit.add_argument("--compaction", action="store_true", help="the request compacts the conversation")
    admit.add_argument("--require-pin", action="store_true", help="the worker has had turns before")
    admit.add_argument("--dry-run", action="store_true", help="store, charge and wait for nothing")
    admit.add_argument("--explain", action="store_true", help="every candidate's verdict as a table")
    add_server_options(admit)
    admit.set_defaults(run=run_admit)

    capacity = commands.add_parser("capacity", help="the facts now; `clear` lifts a blocker")
    capacity.add_argument("--provider", action="append", default=[], metavar="P", help="only these; may be repeated")
    capacity.add_argument("--model", default="", metavar="M", help="a route: also each candidate's verdict now")
    add_server_options(capacity)
    capacity.set_defaults(run=run_capacity)
    actions = capacity.add_subparsers(dest="action", metavar="ACTION")
    clear = actions.add_parser("clear", help="remove blocked rows of a provider or of one of its models")
    clear.add_argument("provider_name", metavar="PROVIDER")
    clear.add_argument("--model", default="", metavar="M", help="the model's rows (default: the account's)")
    clear.add_argument("--blocker", default="", metavar="KIND", help="only this kind, as in AUTH_FAILED")
    clear.add_argument("--reason", required=True, help="why; kept in the server's log")
    add_server_options(clear)
    clear.set_defaults(run=run_clear)

    catalog = commands.add_parser("catalog", help="what may be asked for")
    catalog.add_argument("--include-hidden", action="store_true", help="routes, too")
    add_server_options(catalog)
    catalog.set_defaults(run=run_catalog)


def run_admit(arguments: argparse.Namespace) -> int:
    """Ask for one admission. `forward` is the exit code."""
    with client(arguments) as server:
        admission = server.admit(
            arguments.model,
            arguments.worker_id,
            request_bytes=arguments.request_bytes,
            reasoning_effort=arguments.reasoning_effort,
            tenant=arguments.tenant,
            provider_state=arguments.provider_state,
            input_modalities=arguments.input_modality,
            compaction=arguments.compaction,
            require_pin=arguments.require_pin,
            dry_run=arguments.dry_run,
            explain=arguments.explain,
        )
    response = admission.response
    if arguments.json:
        print_message(response)
    else:
        _print_admission(response, explain=arguments.explain)
    return 0 if admission.may_forward else 1


def _print_admission(response: admission_pb2.AdmitResponse, *, explain: bool) -> None:
    verdict = short_name(types_pb2.Verdict.Name(response.verdict), "VERDICT_")
    if response.HasField("refusal"):
        refusal = response.refusal
        print(f"{verdict} {refusal.code} (HTTP {refusal.http_status}, {'retryable' if refusal.retryable else 'final'})")
        print(refusal.message)
        if response.suggestion:
            print(f"would help: {response.suggestion}")
    else:
        state = short_name(types_pb2.PinState.Name(response.pin_state), "PIN_STATE_")
        print(f"{verdict} {response.binding.candidate} (provider {response.binding.provider}, pin {state})")
        for name, value in sorted(response.headers.items()):
            print(f"{name}: {value}")
    for evidence in response.evidence:
        blocker = short_name(types_pb2.Blocker.Name(evidence.blocker), "BLOCKER_")
        print(f"evidence: {evidence.candidate} {blocker}, {seconds(evidence.fact.age)} old")
    if explain:
        print()
        print_evaluations(response.evaluations)


def print_evaluations(evaluations: Iterable[types_pb2.Evaluation]) -> None:
    """A row per candidate, in the order of the decision."""
    rows = [
        (
            e.candidate,
            short_name(types_pb2.Tier.Name(e.tier), "TIER_").lower(),
            short_name(types_pb2.CandidateVerdict.Name(e.verdict), "CANDIDATE_VERDICT_"),
            short_name(types_pb2.Blocker.Name(e.blocker), "BLOCKER_"),
            "confirmed" if e.confirmed else "-",
            e.detail,
        )
        for e in evaluations
    ]
    print_table(("CANDIDATE", "TIER", "VERDICT", "BLOCKER", "CONFIRMED", "WHY"), rows)


def run_capacity(arguments: argparse.Namespace) -> int:
    """Print the facts, and for a route the verdicts. With a route, exit 1 when no candidate is eligible."""
    with client(arguments) as server:
        response = server.capacity(arguments.provider, model=arguments.model)
    if arguments.json:
        print_message(response)
    else:
        print_table(
            ("PROVIDER", "MODEL", "FACT", "VALUE", "AGE", "FRESHNESS", "COLLECTOR"), map(_fact_row, response.facts)
        )
        if response.evaluations:
            print()
            print_evaluations(response.evaluations)
    eligible = types_pb2.CANDIDATE_VERDICT_ELIGIBLE
    return 0 if not response.evaluations or any(e.verdict == eligible for e in response.evaluations) else 1


def _fact_row(fact: types_pb2.Fact) -> tuple[str, ...]:
    observation = fact.observation
    kind, value = describe_value(observation)
    freshness = short_name(types_pb2.Freshness.Name(fact.freshness), "FRESHNESS_").lower()
    model = observation.model or "(account)"
    return (observation.provider, model, kind, value, seconds(fact.age), freshness, fact.collector_id)


def describe_value(observation: types_pb2.Observation) -> tuple[str, str]:
    """A fact's kind with its key, and its value, for people."""
    match observation.WhichOneof("value"):
        case "health":
            health = observation.health
            load = "".join(
                f" {name}={getattr(health, name):g}"
                for name in ("running", "waiting", "kv_usage")
                if health.HasField(name)
            )
            return "health", short_name(types_pb2.HealthState.Name(health.state), "HEALTH_STATE_") + load
        case "quota":
            quota = observation.quota
            left = "unlimited" if quota.unlimited else f"{quota.remaining_percent:g} % left"
            return f"quota {quota.window}{f'/{quota.scope}' if quota.scope else ''}", left
        case "balance":
            balance = observation.balance
            amount = "unlimited" if balance.unlimited else balance.amount
            word = "" if not balance.HasField("available") else f" available={str(balance.available).lower()}"
            return f"balance {balance.scope or 'account'}", f"{amount} {balance.currency}{word}"
        case _:
            row = observation.availability
            state = short_name(types_pb2.AvailabilityState.Name(row.state), "AVAILABILITY_STATE_")
            blocker = short_name(types_pb2.Blocker.Name(row.blocker), "BLOCKER_")
            if row.state == types_pb2.AVAILABILITY_STATE_BLOCKED:
                return "availability", f"{state} {blocker}"
            return "availability", state if blocker == "-" else f"{state} (not {blocker})"


def seconds(length: Duration) -> str:
    """A length of time in seconds, for a column."""
    return f"{length.seconds + length.nanos / 1e9:.1f} s"


def run_clear(arguments: argparse.Namespace) -> int:
    """Lift blockers."""
    name = f"BLOCKER_{arguments.blocker.upper()}"
    if arguments.blocker and name not in types_pb2.Blocker.keys():  # noqa: SIM118 - an enum wrapper, no mapping
        print(f'tidegate capacity clear: there is no blocker "{arguments.blocker}"')
        return 2
    blocker = types_pb2.Blocker.Value(name) if arguments.blocker else types_pb2.BLOCKER_UNSPECIFIED
    with client(arguments) as server:
        cleared = server.clear_blockers(
            arguments.provider_name, reason=arguments.reason, model=arguments.model, blocker=blocker
        )
    if arguments.json:
        print_json({"cleared": cleared})
    else:
        print(f"cleared {cleared}")
    return 0


def run_catalog(arguments: argparse.Namespace) -> int:
    """Print the catalog."""
    with client(arguments) as server:
        response = server.catalog(include_hidden=arguments.include_hidden)
    if arguments.json:
        print_message(response)
        return 0
    rows = [
        (m.id, "route" if m.managed else "model", m.context_window, " ".join(m.reasoning_efforts) or "-")
        for m in response.models
    ]
    print_table(("MODEL", "KIND", "CONTEXT", "EFFORTS"), rows)
    return 0
