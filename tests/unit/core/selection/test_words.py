"""Word overlap: the way out when no embedding can be had. Never the order of registration."""

from tidegate_server.core.selection.model import Agent
from tidegate_server.core.selection.words import by_overlap, card, match_by_name

SUBJECTS = [
    "invoices",
    "payroll",
    "taxes",
    "contracts",
    "hiring",
    "onboarding",
    "holidays",
    "travel",
    "hotels",
    "flights",
    "visas",
    "laptops",
    "printers",
    "networks",
    "passwords",
    "backups",
    "servers",
    "databases",
    "deployments",
    "incidents",
    "releases",
    "roadmaps",
    "surveys",
    "interviews",
    "newsletters",
    "banners",
    "videos",
    "podcasts",
    "events",
    "booths",
    "sponsors",
    "partners",
    "resellers",
    "warranties",
    "returns",
    "shipping",
    "customs",
    "warehouses",
    "forklifts",
    "catering",
]
FLEET = [
    Agent(f"agent-{i:02}", f"Helper {i:02}", f"An agent that helps people with {subject} at work")
    for i, subject in enumerate(SUBJECTS)
]


def test_of_forty_agents_each_is_reached_by_what_only_it_does() -> None:
    assert len(FLEET) == 40
    for agent, subject in zip(FLEET, SUBJECTS, strict=True):
        assert by_overlap(f"Please can an agent help me with {subject}?", FLEET)[0] == agent


def test_a_word_that_all_cards_have_weighs_less_than_one_that_a_single_card_has() -> None:
    agents = [Agent("a", "A", "helps people at work with people"), Agent("b", "B", "warranties")]
    filler = [Agent(f"f{i}", f"F{i}", "helps people at work") for i in range(8)]
    assert by_overlap("people at work, warranties", [*agents, *filler])[0].agent_id == "b"


def test_parts_of_words_break_ties() -> None:
    agents = [Agent("a", "A", "spedition"), Agent("b", "B", "invoice handling")]
    assert by_overlap("my invoices", agents)[0].agent_id == "b"


def test_scripts_without_spaces_are_compared_by_parts() -> None:
    agents = [Agent("a", "A", "旅行の予約を手配します"), Agent("b", "B", "請求書を処理します")]
    assert by_overlap("請求書の支払いについて", agents)[0].agent_id == "b"


def test_agents_that_say_nothing_keep_their_order_and_none_is_lost() -> None:
    assert by_overlap("zzz", FLEET) == tuple(FLEET)
    assert sorted(by_overlap("laptops and visas", FLEET)) == FLEET
    assert by_overlap("anything", []) == ()
    assert by_overlap("", FLEET) == tuple(FLEET)


def test_a_card_is_name_description_skills_and_tags() -> None:
    agent = Agent("id", "Name", " text ", ("s1", "s2"), ("t",), owner="o", url="u")
    assert card(agent) == "Name\ntext\ns1, s2\nt"
    assert card(Agent("id", "Name")) == "Name"


def test_a_task_that_names_an_agent_goes_to_it() -> None:
    agents = [Agent("a", "Research", "finds sources"), Agent("b", "Research writer", "x"), Agent("c", "Taxes", "taxes")]
    assert match_by_name("let the research writer do the taxes", agents).agent_id == "b"
    assert match_by_name("RESEARCH this", agents).agent_id == "a"
    assert match_by_name("researchers", agents).agent_id == "a"  # no name stands in it; the parts of words decide
    assert match_by_name("file the taxes return", agents).agent_id == "c"
    assert match_by_name("find good sources", agents).agent_id == "a"


def test_an_id_in_the_task_counts_as_a_name() -> None:
    agents = [Agent("a-1", "First"), Agent("b-2", "Second")]
    assert match_by_name("give it to b-2 please", agents).agent_id == "b-2"
