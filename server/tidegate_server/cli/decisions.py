"""`tidegate decisions list|show|export` and `tidegate stats`: what was decided, and why (§10 of the contract)."""

import argparse
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from google.protobuf.json_format import MessageToDict
from tidegate import Client
from tidegate.v1 import selection_pb2

from tidegate_server.cli.common import Commands, add_server_options, client, print_json, print_table

LISTED = 50


def add_arguments(commands: Commands) -> None:
    """Add the commands."""
    decisions = commands.add_parser("decisions", help="list, show and export logged decisions")
    actions = decisions.add_subparsers(dest="action", required=True, metavar="ACTION")

    listing = actions.add_parser("list", help="decisions, the newest first")
    _add_filters(listing, LISTED)
    listing.set_defaults(run=run_list)

    show = actions.add_parser("show", help="one decision with all that it read")
    show.add_argument("decision_id", metavar="ID")
    add_server_options(show)
    show.set_defaults(run=run_show)

    export = actions.add_parser("export", help="decisions as JSON lines, the newest first")
    _add_filters(export, 0)
    export.set_defaults(run=run_export)

    stats = commands.add_parser("stats", help="sums over the decision log, as of a moment")
    add_server_options(stats)
    stats.set_defaults(run=run_stats)


def _add_filters(parser: argparse.ArgumentParser, limit: int) -> None:
    parser.add_argument("--session", default="", metavar="ID", help="only this session's or worker's")
    parser.add_argument("--model", default="", metavar="M", help="only those about this route, model or agent")
    parser.add_argument("--kind", default="", choices=("admission", "hop", "selection"), help="only this kind")
    parser.add_argument(
        "--limit", type=int, default=limit, metavar="N", help=f"at most so many, 0: all (default: {limit or 'all'})"
    )
    add_server_options(parser)


def run_list(arguments: argparse.Namespace) -> int:
    """Print decisions as a table."""
    with client(arguments) as server:
        found = list(islice(_decisions(server, arguments), arguments.limit or None))
    if arguments.json:
        print_json({"decisions": [_data(record) for record in found]})
    else:
        print_table(("TIME", "DECISION", "KIND", "SUBJECT", "OUTCOME", "REASON"), map(_row, found))
    return 0


def run_show(arguments: argparse.Namespace) -> int:
    """Print one decision; the server's NOT_FOUND is exit code 1."""
    request = selection_pb2.ListDecisionsRequest(decision_id=arguments.decision_id)
    with client(arguments) as server:
        (record,) = server.agents.list_decisions(request).decisions
    if arguments.json:
        print_json(_data(record))
        return 0
    for name, value in zip(("time", "decision", "kind", "subject", "outcome", "reason"), _row(record), strict=True):
        print(f"{name + ':':11}{value}")
    print_json(json.loads(record.detail_json))
    return 0


def run_export(arguments: argparse.Namespace) -> int:
    """Print decisions as JSON lines, a page at a time."""
    with client(arguments) as server:
        for record in islice(_decisions(server, arguments), arguments.limit or None):
            print(json.dumps(_data(record), ensure_ascii=False))
    return 0


def run_stats(arguments: argparse.Namespace) -> int:
    """Print the statistics."""
    with client(arguments) as server:
        response = server.agents.get_stats(selection_pb2.GetStatsRequest())
    if arguments.json:
        rows = [{"group": row.group, "key": row.key, "figures": dict(row.figures)} for row in response.rows]
        print_json({"as_of_time": response.as_of_time.ToJsonString(), "rows": rows})
        return 0
    print(f"as of {response.as_of_time.ToJsonString()}")
    print_table(
        ("GROUP", "KEY", "FIGURE", "VALUE"),
        (
            (row.group, row.key, figure, f"{value:.12g}")
            for row in response.rows
            for figure, value in sorted(row.figures.items())
        ),
    )
    return 0


def _decisions(server: Client, arguments: argparse.Namespace) -> Iterator[selection_pb2.DecisionRecord]:
    token = ""
    while True:
        request = selection_pb2.ListDecisionsRequest(
            page_size=200,
            page_token=token,
            session_id=arguments.session,
            model=arguments.model,
            kind=arguments.kind,
        )
        page = server.agents.list_decisions(request)
        yield from page.decisions
        token = page.next_page_token
        if not token:
            return


def _data(record: selection_pb2.DecisionRecord) -> dict[str, Any]:
    """A record as JSON data, its detail as data and not as text in text."""
    data: dict[str, Any] = MessageToDict(record, preserving_proto_field_name=True)
    data.pop("detail_json", None)
    return {**data, "detail": json.loads(record.detail_json or "{}")}


def _row(record: selection_pb2.DecisionRecord) -> tuple[str, ...]:
    time = record.decide_time.ToJsonString()
    return (time, record.decision_id, record.kind, record.subject, record.outcome, record.reason or "-")
