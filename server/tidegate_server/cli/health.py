"""`tidegate healthcheck`: what a probe asks."""

import argparse

from tidegate_server.cli.common import Commands, add_server_options, client, print_json


def add_arguments(commands: Commands) -> None:
    """Add the command."""
    healthcheck = commands.add_parser("healthcheck", help="ask grpc.health.v1; exit 0 when SERVING")
    healthcheck.add_argument("--service", default="", metavar="S", help="a service's full name, liveness or readiness")
    add_server_options(healthcheck)
    healthcheck.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask once."""
    with client(arguments) as server:
        serving = server.serving(arguments.service)
    if arguments.json:
        print_json({"service": arguments.service, "serving": serving})
    else:
        print("SERVING" if serving else "NOT_SERVING")
    return 0 if serving else 1
