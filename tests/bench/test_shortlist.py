"""The floor of the shortlist's benchmark, and that its data is what it says."""

from tests.bench.shortlist import FLOOR, embedded, fleet, overlapping, queries


def test_the_data_is_200_agents_and_100_queries_for_as_many_agents() -> None:
    ids = {agent.agent_id for agent in fleet()}
    wanted = {agent_id for agent_id, _ in queries()}
    assert len(ids) == len(fleet()) == 200
    assert len({agent.description for agent in fleet()}) == 200
    assert len(wanted) == len(queries()) == 100
    assert wanted <= ids


async def test_the_embedded_default_keeps_the_right_agent_in_the_shortlist() -> None:
    found = await embedded()
    assert found.kept >= FLOOR, found.lost


def test_word_overlap_is_a_way_out_and_not_a_rival() -> None:
    found = overlapping()
    assert found.kept >= 70, found.lost
