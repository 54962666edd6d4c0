"""`tidegate agents list|add|remove`: the registry of agents (§9 of the contract)."""

import argparse
from collections.abc import Iterator

from google.protobuf.json_format import MessageToDict
from tidegate import Client
from tidegate.v1 import selection_pb2

from tidegate_server.cli.common import Commands, add_server_options, client, print_json, print_message, print_table


def add_arguments(commands: Commands) -> None:
    """Add the commands."""
    agents = commands.add_parser("agents", help="list, add and remove agents")
    actions = agents.add_subparsers(dest="action", required=True, metavar="ACTION")

    listing = actions.add_parser("list", help="the agents, in the order of their ids")
    listing.add_argument("--caller", default="", metavar="C", help="only those that this caller may see (default: all)")
    add_server_options(listing)
    listing.set_defaults(run=run_list)

    add = actions.add_parser("add", help="register an agent, or a new version of it")
    add.add_argument("agent_id", metavar="ID")
    add.add_argument("--name", default="", help="default: the id")
    add.add_argument("--description", default="", help="what it is good for; selection compares queries with it")
    add.add_argument("--skill", action="append", default=[], metavar="S", help="may be repeated")
    add.add_argument("--tag", action="append", default=[], metavar="T", help="may be repeated")
    add.add_argument("--owner", default="", metavar="O", help="default: the identity that registers it")
    add.add_argument("--visible-to", action="append", default=[], metavar="C", help="may be repeated (default: all)")
    add.add_argument("--url", default="", help="where it is called")
    add_server_options(add)
    add.set_defaults(run=run_add)

    remove = actions.add_parser("remove", help="take an agent out of the registry")
    remove.add_argument("agent_id", metavar="ID")
    add_server_options(remove)
    remove.set_defaults(run=run_remove)


def run_list(arguments: argparse.Namespace) -> int:
    """Print agents."""
    with client(arguments) as server:
        found = list(_agents(server, arguments.caller))
    if arguments.json:
        print_json({"agents": [MessageToDict(agent, preserving_proto_field_name=True) for agent in found]})
    else:
        print_table(("AGENT", "NAME", "OWNER", "VISIBLE TO", "DESCRIPTION"), map(_row, found))
    return 0


def run_add(arguments: argparse.Namespace) -> int:
    """Register an agent."""
    agent = selection_pb2.Agent(
        agent_id=arguments.agent_id,
        name=arguments.name or arguments.agent_id,
        description=arguments.description,
        skills=arguments.skill,
        tags=arguments.tag,
        owner=arguments.owner,
        visible_to=arguments.visible_to,
        url=arguments.url,
    )
    with client(arguments) as server:
        stored = server.agents.register(selection_pb2.RegisterAgentRequest(agent=agent)).agent
    if arguments.json:
        print_message(stored)
    else:
        print(f"registered {stored.agent_id}, owner {stored.owner or '-'}")
    return 0


def run_remove(arguments: argparse.Namespace) -> int:
    """Remove an agent."""
    with client(arguments) as server:
        server.agents.deregister(selection_pb2.DeregisterAgentRequest(agent_id=arguments.agent_id))
    if arguments.json:
        print_json({"removed": arguments.agent_id})
    else:
        print(f"removed {arguments.agent_id}")
    return 0


def _agents(server: Client, caller: str) -> Iterator[selection_pb2.Agent]:
    token = ""
    while True:
        page = server.agents.list(selection_pb2.ListAgentsRequest(caller=caller, page_size=500, page_token=token))
        yield from page.agents
        token = page.next_page_token
        if not token:
            return


def _row(agent: selection_pb2.Agent) -> tuple[str, ...]:
    visible_to = ", ".join(agent.visible_to) or "all"
    description = " ".join(agent.description.split())
    shown = description if len(description) <= 60 else f"{description[:59]}…"
    return (agent.agent_id, agent.name, agent.owner or "-", visible_to, shown)
