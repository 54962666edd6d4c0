"""`tidegate serve` and `tidegate version`."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tidegate_server import __version__
from tidegate_server.cli.common import Commands, add_json_option, print_json
from tidegate_server.config import ConfigurationSource
from tidegate_server.errors import TidegateError
from tidegate_server.wiring.redaction import redact_logs, secrets_of

log = logging.getLogger("tidegate")


def add_arguments(commands: Commands) -> None:
    """Add the commands."""
    serve = commands.add_parser("serve", help="run the server in the foreground")
    serve.add_argument("--config", required=True, metavar="F", help="the configuration, YAML or JSON")
    serve.add_argument(
        "--listen", action="append", default=[], metavar="A", help="instead of the file's `listen`; may be repeated"
    )
    serve.add_argument("--state-directory", metavar="D", help="instead of the file's `stateDirectory`")
    serve.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes (default: 1; more need the shared mode)"
    )
    serve.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    serve.set_defaults(run=run)
    version = commands.add_parser("version", help="print the version")
    add_json_option(version)
    version.set_defaults(run=print_version)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM."""
    logging.basicConfig(
        level=arguments.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if arguments.workers < 1:
        print("tidegate serve: --workers must be 1 or more", file=sys.stderr)
        return 2
    source = ConfigurationSource(arguments.config, listen=arguments.listen, state_directory=arguments.state_directory)
    redact_logs(secrets_of(source.configuration, os.environ))

    def started(addresses: Sequence[object]) -> None:
        print(f"listening on {', '.join(map(str, addresses))}", flush=True)

    if arguments.workers > 1:
        from tidegate_server.wiring.workers import Supervisor  # noqa: PLC0415 - for the server only

        return Supervisor(source, Path(arguments.config), arguments.workers, arguments.log_level).run(started)
    from tidegate_server.wiring import event_loop  # noqa: PLC0415 - as above
    from tidegate_server.wiring.run import serve  # noqa: PLC0415 - gRPC and the stores are for the server only

    try:
        event_loop.run(serve(source, started=started))
    except TidegateError:
        raise
    except Exception:
        log.critical("the server ended with an error that nobody expected", exc_info=True)
        return 1
    return 0


def print_version(arguments: argparse.Namespace) -> int:
    """The version, alone on a line."""
    if arguments.json:
        print_json({"version": __version__})
    else:
        print(__version__)
    return 0
