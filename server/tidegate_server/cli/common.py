"""What the commands share: the options of those that speak to a server, and the ways to print."""

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from tidegate import Client

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - it has no public name


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Where the server is, what to show it, and how to print."""
    parser.add_argument(
        "--server", metavar="ADDR", help="host:port or unix:/path (default: TIDEGATE_SERVER, else 127.0.0.1:50051)"
    )
    parser.add_argument(
        "--token-file",
        metavar="F",
        help="file with a bearer token (default: TIDEGATE_TOKEN_FILE, else state/local.token)",
    )
    parser.add_argument(
        "--timeout", type=positive_seconds, default=10.0, metavar="S", help="seconds for the whole call (default: 10)"
    )
    add_json_option(parser)


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """JSON instead of text for people."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def positive_seconds(text: str) -> float:
    """A length of time in seconds."""
    seconds = float(text)
    if not 0 < seconds < 86_400:
        raise argparse.ArgumentTypeError("must be above 0 and below a day")
    return seconds


def client(arguments: argparse.Namespace) -> Client:
    """A client for the server that was named."""
    return Client(arguments.server, token_file=arguments.token_file, timeout=arguments.timeout)


def print_message(message: Message) -> None:
    """A message of the protocol as JSON, with the names that the .proto files have."""
    print_json(MessageToDict(message, preserving_proto_field_name=True))


def print_json(value: object) -> None:
    """JSON, indented."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their widest cell."""
    lines = [tuple(headings), *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def short_name(enum_name: str, prefix: str) -> str:
    """QUOTA_EXHAUSTED of BLOCKER_QUOTA_EXHAUSTED; a dash for an unspecified one."""
    name = enum_name.removeprefix(prefix)
    return "-" if name == "UNSPECIFIED" else name


def say_no(arguments: argparse.Namespace, why: str) -> int:
    """Tell that the answer is no, in the form that was asked for; returns the exit code."""
    if arguments.json:
        print_json({"error": why})
    else:
        print(why)
    return 1
