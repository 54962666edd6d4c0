"""The `tidegate` command. Exit codes: 0 yes, 1 no, 2 wrong use."""

import argparse
import sys
from collections.abc import Sequence

from tidegate.errors import CredentialError, TidegateError
from tidegate_collectors import cli as collectors

from tidegate_server import errors
from tidegate_server.cli import admission, agents, check, decisions, flows, health, migrate, operator, prove, serve
from tidegate_server.cli.common import print_json

GROUPS = (serve, check, prove, admission, flows, operator, agents, decisions, migrate, health, collectors)
"""Each adds its own commands: `add_arguments(subparsers)` sets `run`, which returns the exit code."""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="tidegate", description="Admission for LLM and agent gateways.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in GROUPS:
        group.add_arguments(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; what is wrong goes to standard error in one line, never as a traceback.

    With --json it is also JSON on standard output, so that a program need not read prose.
    """
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except (TidegateError, CredentialError, errors.TidegateError) as error:
        print(f"tidegate {arguments.command}: {error}", file=sys.stderr)
        if getattr(arguments, "json", False):
            print_json({"error": str(error), "reason": getattr(error, "reason", "")})
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
