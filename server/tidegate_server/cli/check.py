"""`tidegate check` and `tidegate config schema`: a configuration before it is used."""

import argparse
from collections import Counter

from tidegate_server.cli.common import Commands, add_server_options, client, print_json, print_table
from tidegate_server.config import compile_policy, json_schema_text, load
from tidegate_server.core.policy import Policy
from tidegate_server.errors import ConfigurationError


def add_arguments(commands: Commands) -> None:
    """Add the commands."""
    check = commands.add_parser("check", help="check a configuration; exit 1 on any fault")
    check.add_argument("--config", required=True, metavar="F", help="the configuration, YAML or JSON")
    add_server_options(check)
    check.set_defaults(run=run)
    config = commands.add_parser("config", help="what a configuration may hold")
    kinds = config.add_subparsers(dest="what", required=True, metavar="WHAT")
    schema = kinds.add_parser("schema", help="print the JSON Schema")
    schema.add_argument("--json", action="store_true", help="it is JSON anyway")
    schema.set_defaults(run=print_schema)


def run(arguments: argparse.Namespace) -> int:
    """Print every fault; with --server, how many pins this file would orphan, per route."""
    try:
        policy = compile_policy(load(arguments.config))
    except ConfigurationError as error:
        if arguments.json:
            print_json({"valid": False, "faults": error.faults})
        else:
            print("\n".join(error.faults))
        return 1
    orphans = _orphans(arguments, policy) if arguments.server else None
    if arguments.json:
        print_json({"valid": True, "revision": policy.revision, **({} if orphans is None else {"orphans": orphans})})
        return 0
    print(f"{arguments.config}: good, revision {policy.revision}")
    if orphans is not None:
        print_table(("ROUTE", "PINS THAT THIS FILE WOULD ORPHAN"), sorted(orphans.items()))
    return 0


def _orphans(arguments: argparse.Namespace, policy: Policy) -> dict[str, int]:
    """Per route the stored pins that this policy would refuse: PIN_POLICY_CHANGED or PIN_BINDING_CHANGED."""
    counts: Counter[str] = Counter(dict.fromkeys(policy.routes, 0))
    with client(arguments) as server:
        for pin in server.list_pins():
            if pin.retired or not pin.model:
                continue
            route = policy.routes.get(pin.model)
            candidate = None if route is None else route.by_name.get(pin.candidate)
            kept = (
                route is not None
                and candidate is not None
                and route.fingerprint == pin.policy_fingerprint
                and candidate.binding_fingerprint == pin.binding_fingerprint
            )
            counts[pin.model] += not kept
    return dict(counts)


def print_schema(_: argparse.Namespace) -> int:
    """The JSON Schema, as it is kept in the repository."""
    print(json_schema_text(), end="")
    return 0
