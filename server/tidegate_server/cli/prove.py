"""`tidegate prove` and `tidegate replay`: can this ever happen, and what if."""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from tidegate_server.cli.common import Commands, add_json_option, print_json
from tidegate_server.config import compile_policy, load
from tidegate_server.core.prove import PROMISES, RouteProof, prove_route
from tidegate_server.core.replay import RouteChanges, Tally, replay
from tidegate_server.errors import ConfigurationError

EXAMPLES_SHOWN = 3


def add_arguments(commands: Commands) -> None:
    """Add the commands."""
    prove = commands.add_parser("prove", help="check every promise in every state that a configuration can see")
    prove.add_argument("--config", required=True, metavar="F", help="the configuration, YAML or JSON")
    prove.add_argument("--route", action="append", default=[], metavar="R", help="only these; may be repeated")
    add_json_option(prove)
    prove.set_defaults(run=run_prove)

    again = commands.add_parser("replay", help="compute logged decisions again under another configuration")
    again.add_argument(
        "--log", required=True, metavar="F", help="what `tidegate decisions export` printed; -: standard input"
    )
    again.add_argument("--config", required=True, metavar="F", help="the other configuration")
    add_json_option(again)
    again.set_defaults(run=run_replay)


def run_prove(arguments: argparse.Namespace) -> int:
    """Prove each route; exit 1 when a promise breaks."""
    routes = compile_policy(load(arguments.config)).routes
    unknown = [name for name in arguments.route if name not in routes]
    if unknown:
        print(f'tidegate prove: there is no route "{unknown[0]}"', file=sys.stderr)
        return 2
    proofs = [prove_route(route) for name, route in routes.items() if not arguments.route or name in arguments.route]
    if arguments.json:
        print_json(
            {"proved": all(p.counterexample is None for p in proofs), "routes": [_proof_data(p) for p in proofs]}
        )
    else:
        for proof in proofs:
            _print_proof(proof)
        states = sum(proof.checked for proof in proofs)
        print(
            f"{states} states, {len(PROMISES)} promises"
            + ("" if any(p.counterexample for p in proofs) else ": all hold")
        )
    return 1 if any(proof.counterexample is not None for proof in proofs) else 0


def _print_proof(proof: RouteProof) -> None:
    how = ", equal candidates taken together" if proof.reduced else ""
    print(f"{proof.route.name}: {proof.checked} states{how}")
    if proof.counterexample is not None:
        print(f"  BROKEN: {proof.counterexample.promise.name}")
        print(f"  {proof.counterexample.describe()}")
        return
    print(f"  can win: {', '.join(c.name for c in proof.route.candidates if c.name in proof.winners) or 'nobody'}")
    for name in proof.never_wins:
        print(f"  warning: {name} can never win")


def _proof_data(proof: RouteProof) -> dict[str, Any]:
    found = proof.counterexample
    return {
        "route": proof.route.name,
        "states": proof.checked,
        "reduced": proof.reduced,
        "can_win": sorted(proof.winners),
        "never_wins": list(proof.never_wins),
        "counterexample": None if found is None else {"promise": found.promise.name, "state": found.describe()},
    }


class _Example(NamedTuple):
    decision_id: str
    before: str
    after: str


def run_replay(arguments: argparse.Namespace) -> int:
    """Print what another configuration would have answered. Exit 1 when something changes."""
    policy = compile_policy(load(arguments.config))
    tally = Tally()
    examples: dict[str, list[_Example]] = {}
    try:
        for record in _admissions(arguments.log):
            replayed = replay(record["detail"], policy)
            tally.add(replayed)
            kept = examples.setdefault(replayed.route, [])
            if replayed.changed and len(kept) < EXAMPLES_SHOWN:
                kept.append(_Example(record["decision_id"], replayed.before, replayed.after))
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no export of the decision log"
        raise ConfigurationError([f"{arguments.log}: {reason}"]) from error
    routes = tally.routes()
    if arguments.json:
        print_json({route: _changes_data(changes, examples[route]) for route, changes in routes.items()})
    else:
        for route, changes in routes.items():
            _print_changes(route, changes, examples[route])
    return 1 if any(changes.changes for changes in routes.values()) else 0


def _admissions(path: str) -> Iterator[dict[str, Any]]:
    """The admissions of a log that rest on a policy: an explicit model was not decided, and has no detail."""
    with sys.stdin if path == "-" else open(path, encoding="utf-8") as lines:  # noqa: PTH123 - or standard input
        for line in lines:
            record = json.loads(line)
            if record.get("kind") == "admission" and record.get("detail"):
                yield record


def _print_changes(route: str, changes: RouteChanges, examples: list[_Example]) -> None:
    print(f"{route}: {changes.total} admissions, {sum(changes.changes.values())} answered otherwise")
    print(f"  paid: {changes.paid_before} before, {changes.paid_after} after")
    for (before, after), count in changes.changes.items():
        print(f"  {count} x {before} -> {after}")
    for example in examples:
        print(f"  e.g. {example.decision_id}: {example.before} -> {example.after}")


def _changes_data(changes: RouteChanges, examples: list[_Example]) -> dict[str, Any]:
    return {
        "total": changes.total,
        "changed": sum(changes.changes.values()),
        "paid_before": changes.paid_before,
        "paid_after": changes.paid_after,
        "changes": [{"before": b, "after": a, "count": n} for (b, a), n in changes.changes.items()],
        "examples": [example._asdict() for example in examples],
    }
