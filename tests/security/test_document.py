"""docs/security.md says what is so: its table is the server's, and the limits that it names are those in force."""

import re
from pathlib import Path

from tidegate_server.rpc import admission, feed_stream
from tidegate_server.rpc.access import ACCESS
from tidegate_server.usecases import feeds, flow_status, report
from tidegate_server.wiring import listeners, run

PAGE = (Path(__file__).resolve().parents[2] / "docs/security.md").read_text()
ROLES = ("gateway", "collector", "operator", "viewer")


def table() -> str:
    """Every method with the roles that may call it."""
    lines = [f"| method | {' | '.join(ROLES)} | without `identities` |", f"|---{'|---' * 5}|"]
    for method, access in ACCESS.items():
        cells = ["yes" if role in access.roles else "no" for role in ROLES]
        alone = "with local.token" if access.identity_always else "yes"
        lines.append(f"| {method[1:].removeprefix('tidegate.v1.')} | {' | '.join(cells)} | {alone} |")
    return "\n".join(lines)


def test_the_table_is_the_servers() -> None:
    shown = re.search(r"<!-- access -->\n(.*?)\n?<!-- /access -->", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] == table(), f"docs/security.md, between the marks, must be\n{table()}"


def test_who_needs_no_identity_is_a_gateway() -> None:
    assert all("gateway" in access.roles for access in ACCESS.values() if not access.identity_always)


def test_the_limits_are_those_in_force() -> None:
    limits = re.search(r"## Limits\n(.*?)\n## ", PAGE, re.DOTALL)
    assert limits is not None
    for told in (
        f"{_spaced(report.MAX_ITEMS)} items, {feed_stream.MAX_BATCH_BYTES >> 20} MiB",
        f"| AdmitBatch | {admission.MAX_BATCH} items",
        f"| metadata of a call | {listeners.METADATA_BYTES >> 10} KiB",
        f"all its models together | {_spaced(report.MAX_FACTS)} |",
        f"| RPCs of one connection | {_spaced(listeners.STREAMS_PER_CONNECTION)} |",
        f"2 × `limits.maxFeeds` + {run.STREAMS_BESIDES_FEEDS}",
        f"`limits.maxFeeds` 256, {flow_status.MAX_WATCHERS} |",
        f"| time to say hello on a feed | {feed_stream.HELLO_WITHIN // 10**9} s",
        f"| time to become a connection | {listeners.HANDSHAKE_MS // 1000} s",
        f"one in {listeners.SHORTEST_PING_MS // 1000} s",
        f"| {feeds.ASKED}, {_spaced(flow_status.WATCH_QUEUE)} |",
    ):
        assert told in limits[1], told


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")
