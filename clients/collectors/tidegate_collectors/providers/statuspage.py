"""Status pages (Statuspage v2 and what is compatible with it): advice for people, which blocks nothing."""

from tidegate_collectors.facts import Advisory, Reading, Source, failure
from tidegate_collectors.payload import Malformed, Response, items, mapping, text

TTL = 300.0
_KNOWN = frozenset({"none", "minor", "major", "critical", "maintenance"})


def statuspage(response: Response, source: Source) -> Reading:
    """Read /api/v2/summary.json."""
    if not response.ok:
        return failure(f"the status page answered HTTP {response.status}")
    try:
        tree = response.tree
    except Malformed as error:
        return failure(f"the status page: {error}")
    indicator = text(mapping(tree.get("status")).get("indicator"))
    if indicator not in _KNOWN:
        return failure("the status page has no known indicator")
    components = tuple(
        (text(component.get("name")), text(component.get("status")))
        for component in map(mapping, items(tree.get("components")))
        if text(component.get("status")) not in ("", "operational")
    )
    fact = Advisory(provider=source.provider, ttl=TTL, indicator=indicator, components=components)
    return Reading(facts=(fact,))
