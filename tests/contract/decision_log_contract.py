"""What every store of decisions keeps to; a store joins by a class of its own with the fixture `store`."""

from tidegate_server.core.decision_record import DecisionRecord, Tally
from tidegate_server.core.model import SECOND
from tidegate_server.ports import DecisionFilter, DecisionStore

DAY = 24 * 3600 * SECOND
ALL = DecisionFilter("default")


def record(number: int, **changes: object) -> DecisionRecord:
    """The `number`th admission of a test."""
    made = DecisionRecord(f"id-{number:04}", number, "admission", "managed/routine", "ADMITTED")
    return made._replace(**changes)  # type: ignore[arg-type]  # each test changes the fields that it is about


async def ids(store: DecisionStore, which: DecisionFilter) -> list[str]:
    """The ids of one large page."""
    return [found.decision_id for found in (await store.list(which, before=0, limit=100)).records]


class DecisionStoreContract:
    """The suite."""

    async def test_a_record_comes_back_whole(self, store: DecisionStore) -> None:
        written = record(1, outcome="REFUSED", reason="CAPACITY_UNKNOWN", session="ab12", detail='{"ü": 1}')
        await store.write([written])
        assert (await store.list(ALL, before=0, limit=10)).records == (written,)

    async def test_a_page_has_the_newest_first_and_says_where_the_next_starts(self, store: DecisionStore) -> None:
        await store.write([record(i) for i in range(3)])
        await store.write([record(i) for i in range(3, 5)])
        first = await store.list(ALL, before=0, limit=2)
        second = await store.list(ALL, before=first.next_before, limit=2)
        third = await store.list(ALL, before=second.next_before, limit=2)
        pages = [[found.decision_id for found in page.records] for page in (first, second, third)]
        assert pages == [["id-0004", "id-0003"], ["id-0002", "id-0001"], ["id-0000"]]
        assert third.next_before == 0

    async def test_a_page_stays_where_it_is_while_decisions_come_in(self, store: DecisionStore) -> None:
        await store.write([record(i) for i in range(4)])
        first = await store.list(ALL, before=0, limit=2)
        await store.write([record(9)])
        second = await store.list(ALL, before=first.next_before, limit=2)
        assert [found.decision_id for found in second.records] == ["id-0001", "id-0000"]

    async def test_filters_hold_together(self, store: DecisionStore) -> None:
        await store.write(
            [
                record(1, session="s1"),
                record(2, session="s2"),
                record(3, session="s1", subject="managed/review"),
                record(4, session="s1", kind="selection", subject="billing"),
                record(5, session="s1", namespace="other"),
            ]
        )
        assert await ids(store, DecisionFilter("default", session="s1")) == ["id-0004", "id-0003", "id-0001"]
        assert await ids(store, DecisionFilter("default", session="s1", kind="admission")) == ["id-0003", "id-0001"]
        assert await ids(store, DecisionFilter("default", subject="managed/review")) == ["id-0003"]
        assert await ids(store, DecisionFilter("default", decision_id="id-0002")) == ["id-0002"]
        assert await ids(store, DecisionFilter("default", decision_id="id-0005")) == []
        assert await ids(store, DecisionFilter("other")) == ["id-0005"]

    async def test_a_batch_written_twice_counts_once(self, store: DecisionStore) -> None:
        batch = [record(1), record(2, outcome="REFUSED", reason="CAPACITY_UNKNOWN")]
        await store.write(batch)
        await store.write([*batch, record(3)])
        assert await ids(store, ALL) == ["id-0003", "id-0002", "id-0001"]
        assert list(await store.totals("default")) == [
            Tally("admission", "managed/routine", "admitted", 2.0),
            Tally("admission", "managed/routine", "capacity_unknown", 1.0),
            Tally("admission", "managed/routine", "decisions", 3.0),
            Tally("admission", "managed/routine", "refused", 1.0),
        ]

    async def test_a_selection_s_call_is_a_line_of_its_own(self, store: DecisionStore) -> None:
        call = (Tally("selection_call", "gpt-4o", "input_tokens", 800), Tally("selection_call", "gpt-4o", "cost", 0.25))
        await store.write(
            [
                record(1, kind="selection", subject="billing", outcome="SELECTED", tallies=call),
                record(2, kind="selection", subject="travel", outcome="SELECTED", tallies=call, decide_time=DAY + 1),
                record(3, kind="hop", subject="flow", outcome="REFUSED", reason="FLOW_DEPTH_EXCEEDED"),
                record(4, namespace="other"),
            ]
        )
        totals = {(t.group, t.key, t.figure): t.value for t in await store.totals("default")}
        assert totals == {
            ("selection", "billing", "decisions"): 1.0,
            ("selection", "billing", "selected"): 1.0,
            ("selection", "travel", "decisions"): 1.0,
            ("selection", "travel", "selected"): 1.0,
            ("selection_call", "gpt-4o", "input_tokens"): 1600.0,
            ("selection_call", "gpt-4o", "cost"): 0.5,
            ("flow", "FLOW_DEPTH_EXCEEDED", "decisions"): 1.0,
            ("flow", "FLOW_DEPTH_EXCEEDED", "refused"): 1.0,
        }

    async def test_a_purge_drops_what_is_older(self, store: DecisionStore) -> None:
        await store.write([record(i, decide_time=i * DAY) for i in range(5)])
        assert await store.purge(3 * DAY) == 3
        assert await ids(store, ALL) == ["id-0004", "id-0003"]
        assert {t.figure: t.value for t in await store.totals("default")} == {"decisions": 2.0, "admitted": 2.0}
        await store.write([record(7)])
        assert (await ids(store, ALL))[0] == "id-0007"
