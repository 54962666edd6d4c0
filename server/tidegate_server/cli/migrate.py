"""`tidegate migrate`."""

import argparse

from tidegate_server.cli.common import Commands, add_json_option, print_json
from tidegate_server.config import load

PHASES = {"pre": ("pre",), "post": ("post",), "all": ("pre", "post")}


def add_arguments(commands: Commands) -> None:
    """Add the command."""
    migrate = commands.add_parser("migrate", help="bring the shared mode's database up to date")
    migrate.add_argument("--config", required=True, metavar="F", help="the configuration, YAML or JSON")
    migrate.add_argument(
        "--phase",
        choices=sorted(PHASES),
        default="all",
        help="pre: what only adds, before a new version rolls out; post: the rest, once no old process is left; "
        "all (default): both, for a first installation or a stop of everything",
    )
    add_json_option(migrate)
    migrate.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Apply what is missing; 0 also when nothing was."""
    configuration = load(arguments.config)
    if configuration.stores is None:
        print("the configuration names no stores: embedded stores migrate by themselves")
        return 0
    from tidegate_server.stores.postgres.migrate import migrate  # noqa: PLC0415 - its driver comes with an extra

    applied = migrate(configuration.stores.durable.get_secret_value(), PHASES[arguments.phase])
    if arguments.json:
        print_json({"applied": list(applied)})
    else:
        print("\n".join(f"applied {name}" for name in applied) or "up to date")
    return 0
