"""`tidegate pins …` and `tidegate verify`: what operators do."""

import argparse

from google.protobuf.json_format import MessageToDict
from tidegate.v1 import types_pb2

from tidegate_server.cli.common import (
    Commands,
    add_server_options,
    client,
    print_json,
    print_message,
    print_table,
    say_no,
    short_name,
)


def add_arguments(commands: Commands) -> None:
    """Add the commands."""
    pins = commands.add_parser("pins", help="list, show, retire and verify pins")
    actions = pins.add_subparsers(dest="action", required=True, metavar="ACTION")

    listing = actions.add_parser("list", help="the pins, in the order of their ids")
    _add_selection(listing)
    listing.add_argument("--limit", type=int, default=0, metavar="N", help="at most so many (default: all)")
    add_server_options(listing)
    listing.set_defaults(run=run_list)

    show = actions.add_parser("show", help="one pin")
    show.add_argument("pin_id", help="the pin's id, as `pins list` prints it")
    add_server_options(show)
    show.set_defaults(run=run_show)

    retire = actions.add_parser("retire", help="retire pins for good; their workers are refused from then on")
    which = retire.add_mutually_exclusive_group(required=True)
    which.add_argument("--pin-id", default="", metavar="ID")
    which.add_argument("--provider", default="", metavar="P", help="all pins on this provider")
    which.add_argument("--model", default="", metavar="ROUTE", help="all pins of this route")
    retire.add_argument("--reason", required=True, help="why; kept in the audit line")
    retire.add_argument("--dry-run", action="store_true", help="only count")
    add_server_options(retire)
    retire.set_defaults(run=run_retire)

    verify = actions.add_parser("verify", help="check every pin; exit 1 when one is corrupt")
    add_server_options(verify)
    verify.set_defaults(run=run_verify)

    ready = commands.add_parser("verify", help="is the server ready, and what can it do? exit 1 when not ready")
    add_server_options(ready)
    ready.set_defaults(run=run_ready)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="", metavar="ROUTE", help="only this route's")
    parser.add_argument("--provider", default="", metavar="P", help="only those on this provider")


def run_list(arguments: argparse.Namespace) -> int:
    """Print pins."""
    with client(arguments) as server:
        found: list[types_pb2.PinRecord] = []
        for pin in server.list_pins(model=arguments.model, provider=arguments.provider):
            if arguments.limit and len(found) >= arguments.limit:
                break
            found.append(pin)
    if arguments.json:
        print_json({"pins": [MessageToDict(pin, preserving_proto_field_name=True) for pin in found]})
    else:
        print_table(("PIN", "ROUTE", "CANDIDATE", "CREATED", "STATE"), map(_row, found))
    return 0


def _row(pin: types_pb2.PinRecord) -> tuple[str, ...]:
    if not pin.model:
        return (pin.pin_id, "-", "-", "-", "corrupt")
    created = pin.create_time.ToJsonString()
    return (pin.pin_id, pin.model, pin.candidate, created, "retired" if pin.retired else "active")


def run_show(arguments: argparse.Namespace) -> int:
    """Print one pin; exit 1 when there is none."""
    with client(arguments) as server:
        pin = next(iter(server.list_pins(pin_id=arguments.pin_id)), None)
    if pin is None:
        return say_no(arguments, f'there is no pin "{arguments.pin_id}"')
    if arguments.json:
        print_message(pin)
        return 0
    for name, value in (
        ("pin", pin.pin_id),
        ("route", pin.model or "(corrupt: nothing else is known)"),
        ("candidate", pin.candidate),
        ("provider", pin.provider),
        ("model", pin.provider_model),
        ("tier", short_name(types_pb2.Tier.Name(pin.tier), "TIER_").lower()),
        ("credential source", pin.credential_source),
        ("policy fingerprint", pin.policy_fingerprint),
        ("binding fingerprint", pin.binding_fingerprint),
        ("created", pin.create_time.ToJsonString()),
        ("retired", "yes" if pin.retired else "no"),
    ):
        print(f"{name + ':':21}{value}")
    return 0


def run_retire(arguments: argparse.Namespace) -> int:
    """Retire pins."""
    with client(arguments) as server:
        retired = server.retire_pins(
            pin_id=arguments.pin_id,
            provider=arguments.provider,
            model=arguments.model,
            reason=arguments.reason,
            dry_run=arguments.dry_run,
        )
    if arguments.json:
        print_json({"retired": retired, "dry_run": arguments.dry_run})
    else:
        print(f"{'would retire' if arguments.dry_run else 'retired'} {retired}")
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
    """Check every pin."""
    with client(arguments) as server:
        response = server.verify_pins()
    if arguments.json:
        print_message(response)
    else:
        print(f"checked {response.checked}, corrupt {response.corrupt}")
        for pin_id in response.corrupt_pin_ids:
            print(f"corrupt: {pin_id}")
    return 1 if response.corrupt else 0


def run_ready(arguments: argparse.Namespace) -> int:
    """Ask a running server whether it is ready."""
    with client(arguments) as server:
        status = server.get_status()
    if arguments.json:
        print_json(
            {
                "ready": status.ready,
                "features": list(status.features),
                "configuration_revision": status.configuration_revision,
                "configuration_error": status.configuration_error,
                "dependencies": dict(status.dependencies),
                "warnings": list(status.warnings),
            }
        )
    else:
        print("ready" if status.ready else "not ready")
        print(f"features: {', '.join(status.features)}")
        for name, state in sorted(status.dependencies.items()):
            print(f"{name}: {state}")
        if status.configuration_error:
            print(f"the last reload failed:\n{status.configuration_error}")
        for warning in status.warnings:
            print(f"warning: {warning}")
    return 0 if status.ready else 1
