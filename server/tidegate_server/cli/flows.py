"""`tidegate flows …`: the flows as they stand, and as they change."""

import argparse
from collections.abc import Iterable, Iterator

from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp
from tidegate.errors import TidegateError
from tidegate.v1 import flow_pb2 as wire

from tidegate_server.cli.common import (
    Commands,
    add_server_options,
    client,
    print_json,
    print_message,
    print_table,
)

_PAGE = 200


def add_arguments(commands: Commands) -> None:
    """Add the commands."""
    flows = commands.add_parser("flows", help="list, show and watch flows")
    actions = flows.add_subparsers(dest="action", required=True, metavar="ACTION")

    listing = actions.add_parser("list", help="the flows whose state is kept, newest first")
    listing.add_argument("--open", action="store_true", help="only those with an open hop")
    listing.add_argument("--limit", type=int, default=0, metavar="N", help="at most so many (default: all)")
    add_server_options(listing)
    listing.set_defaults(run=run_list)

    show = actions.add_parser("show", help="one flow as a tree of its hops; exit 1 when it is not known")
    show.add_argument("flow_id", help="the trace id")
    add_server_options(show)
    show.set_defaults(run=run_show)

    watch = actions.add_parser("watch", help="the flows as they stand, then each change, until it is interrupted")
    watch.add_argument("flow_id", nargs="?", default="", help="only this one")
    add_server_options(watch)
    watch.set_defaults(run=run_watch)


def run_list(arguments: argparse.Namespace) -> int:
    """Print the flows."""
    found: list[wire.Flow] = []
    with client(arguments) as server:
        request = wire.ListFlowsRequest(page_size=_PAGE, open_only=arguments.open)
        while True:
            page = server.flows.list(request)
            found += page.flows
            if not page.next_page_token or (arguments.limit and len(found) >= arguments.limit):
                break
            request.page_token = page.next_page_token
    found = found[: arguments.limit or None]
    if arguments.json:
        print_json({"flows": [MessageToDict(flow, preserving_proto_field_name=True) for flow in found]})
    else:
        headings = ("FLOW", "STARTED", "ROOT", "HOPS", "OPEN", "DEPTH", "TOKENS", "REFUSED", "TIME LEFT")
        print_table(headings, map(_row, found))
    return 0


def _row(flow: wire.Flow) -> tuple[object, ...]:
    return (
        flow.flow_id,
        _moment(flow.start_time),
        flow.root_agent,
        flow.invocations,
        flow.open_hops,
        flow.max_depth_reached,
        flow.tokens,
        flow.refusals,
        f"{flow.remaining.time.seconds} s",
    )


def run_show(arguments: argparse.Namespace) -> int:
    """Print one flow."""
    with client(arguments) as server:
        try:
            flow = server.flows.get(arguments.flow_id)
        except TidegateError as error:
            if error.reason != "FLOW_NOT_FOUND":
                raise
            print(error)
            return 1
    if arguments.json:
        print_message(flow)
        return 0
    left = flow.remaining
    print(f"flow {flow.flow_id}, started {_moment(flow.start_time)}, refused {flow.refusals}")
    print(f"{flow.invocations} hops, {flow.open_hops} open, {flow.tokens} tokens")
    print(f"left: {left.depth} deep, {left.fan_out} hops, {left.tokens} tokens, {left.time.seconds} s")
    for line in tree(flow.hops):
        print(line)
    return 0


def tree(hops: Iterable[wire.FlowHop]) -> Iterator[str]:
    """A line a hop, each indented under the one that it was made from, in the order of entry."""
    children: dict[str, list[wire.FlowHop]] = {}
    for hop in hops:
        children.setdefault(hop.parent_hop_id, []).append(hop)
    waiting = [(hop, 0) for hop in reversed(children.get("", []))]
    while waiting:
        hop, indent = waiting.pop()
        yield "  " * indent + _hop(hop)
        waiting += [(child, indent + 1) for child in reversed(children.get(hop.hop_id, []))]


def _hop(hop: wire.FlowHop) -> str:
    state = "open"
    if hop.HasField("end_time"):
        took = (hop.end_time.ToNanoseconds() - hop.start_time.ToNanoseconds()) / 1e9
        state = f"{'ok' if hop.success else 'failed'} after {took:.3f} s"
    return f"{hop.target_agent}  {hop.hop_id}  {state}, {hop.tokens} tokens"


def run_watch(arguments: argparse.Namespace) -> int:
    """Print events until the server or the user ends it."""
    with client(arguments) as server:
        for event in server.flows.watch(arguments.flow_id):
            if arguments.json:
                print_json(MessageToDict(event, preserving_proto_field_name=True))
            else:
                print(describe(event), flush=True)
    return 0


def describe(event: wire.WatchFlowsResponse) -> str:
    """One event in one line."""
    where = event.flow_id
    match event.WhichOneof("event"):
        case "snapshot":
            flow = event.snapshot
            return f"{where}  {flow.invocations} hops, {flow.open_hops} open, {flow.tokens} tokens"
        case "entered":
            return f"{where}  entered  {event.entered.caller_agent or 'gateway'} → {_hop(event.entered)}"
        case "exited":
            return f"{where}  exited   {event.exited.caller_agent or 'gateway'} → {_hop(event.exited)}"
        case "refused":
            refused = event.refused
            pair = f"{refused.caller_agent or 'gateway'} → {refused.target_agent}"
            return f"{where}  refused  {pair}  {refused.refusal.code}: {refused.refusal.message}"
        case "dropped":
            return f"{where or 'all'}  {event.dropped.count} events lost"
        case _:
            return f"{where}  an event that this version does not know"


def _moment(time: Timestamp) -> str:
    return time.ToDatetime().strftime("%Y-%m-%d %H:%M:%S")
