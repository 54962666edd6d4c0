"""Open feeds, refreshes and waiters by themselves: what is asked of whom, and when a wait ends."""

import asyncio

import pytest
from tidegate_server.core.decide import Decision
from tidegate_server.core.model import SECOND, Caller, Verdict
from tidegate_server.errors import FeedReplaced, Overloaded, ShuttingDown
from tidegate_server.testing import FakeClock
from tidegate_server.usecases.changes import Changes
from tidegate_server.usecases.cold_wait import ColdWait, WaitBudget
from tidegate_server.usecases.feeds import Feeds, Session

WAIT = 5 * SECOND // 2
NOW = 1000 * SECOND


def session(name: str = "c", *providers: str, can_refresh: bool = True, identity: str = "i", may: str = "") -> Session:
    allowed = frozenset(may.split()) or None
    caller = Caller(identity, "default", frozenset({"collector"}), allowed)
    return Session(caller, name, frozenset(providers), can_refresh, 0)


def asked(one: Session) -> list[str]:
    """The providers that a session is to be asked for, and its queue emptied."""
    found: list[str] = []
    while not one.asked.empty():
        found += one.asked.get_nowait().providers
    return found


async def test_a_hello_that_names_none_speaks_for_all_that_its_identity_may_feed() -> None:
    assert session().covers("anything")
    assert session("c", "p").covers("p")
    assert not session("c", "p").covers("q")
    assert session(may="p q").covers("q")
    assert not session(may="p q").covers("r")


async def test_a_new_stream_of_the_same_name_replaces_the_old_and_another_identitys_does_not() -> None:
    feeds = Feeds(Changes(), 10)
    old, new, other = session(), session(), session(identity="j")
    for one in (old, other, new):
        feeds.open(one)
    assert isinstance(old.ended.result(), FeedReplaced)
    assert not old.is_live
    assert set(feeds.sessions) == {new, other}
    feeds.close(old)  # its late end takes nobody away
    assert set(feeds.sessions) == {new, other}
    feeds.close(new)
    assert new.ended.result() is None


async def test_a_full_house_takes_no_further_feed_and_a_closing_one_none_at_all() -> None:
    feeds = Feeds(Changes(), 1)
    feeds.open(session("a"))
    with pytest.raises(Overloaded):
        feeds.open(session("b"))
    feeds.open(session("a"))
    feeds.drain()
    assert isinstance(feeds.sessions[0].ended.result(), ShuttingDown)
    with pytest.raises(ShuttingDown):
        feeds.open(session("a"))


async def test_one_refresh_is_in_flight_per_provider_until_its_time_is_over() -> None:
    feeds = Feeds(Changes(), 10)
    one, passive, elsewhere = session("a"), session("b", can_refresh=False), session("c", "q")
    for each in (one, passive, elsewhere):
        feeds.open(each)
    for now in (NOW, NOW + WAIT - 1):
        feeds.ask("p", NOW + WAIT, now)
    assert asked(one) == ["p"]
    feeds.ask("p", NOW + 2 * WAIT, NOW + WAIT)  # nobody answered in time: asked again
    assert asked(one) == ["p"]
    assert (asked(passive), asked(elsewhere)) == ([], [])


async def test_a_collector_that_connects_late_has_as_long_as_the_last_waiter_waits() -> None:
    changes = Changes()
    feeds = Feeds(changes, 10)
    feeds.open(session("hangs"))
    feeds.ask("p", NOW + WAIT, NOW)
    feeds.ask("p", NOW + 2 * WAIT - 1, NOW + WAIT - 1)  # shares the refresh, and waits longer
    late = session("late")
    with changes.expect(["p"]):
        feeds.open(late)
    assert late.asked.get_nowait().until == NOW + 2 * WAIT - 1


async def test_a_refresh_has_failed_when_everyone_who_was_asked_has() -> None:
    feeds = Feeds(Changes(), 10)
    one, two = session("a"), session("b")
    feeds.open(one)
    feeds.open(two)
    assert not feeds.has_failed("p")
    feeds.ask("p", NOW + WAIT, NOW)
    first, second = one.asked.get_nowait(), two.asked.get_nowait()
    assert first.refresh_id != second.refresh_id
    feeds.answered(one, second.refresh_id, ["p"])  # another's id: not an answer
    feeds.answered(one, first.refresh_id, ["p"])
    assert not feeds.has_failed("p")
    feeds.answered(two, second.refresh_id, ["q"])  # it failed for something else
    assert not feeds.has_failed("p")
    feeds.ask("p", NOW + WAIT, NOW)
    for each in (one, two):
        feeds.answered(each, each.asked.get_nowait().refresh_id, ["p"])
    assert feeds.has_failed("p")
    feeds.ask("p", NOW + WAIT, NOW)
    assert not feeds.has_failed("p")


async def test_leaving_counts_as_failing() -> None:
    feeds = Feeds(Changes(), 10)
    one = session()
    feeds.open(one)
    feeds.ask("p", NOW + WAIT, NOW)
    feeds.close(one)
    assert feeds.has_failed("p")
    assert not feeds.covers("p")


async def test_who_can_only_be_waited_for() -> None:
    feeds = Feeds(Changes(), 10)
    assert not feeds.covered_only_passively("p")
    feeds.open(session("a", can_refresh=False))
    assert feeds.covered_only_passively("p")
    feeds.open(session("b", "q"))
    assert feeds.covered_only_passively("p")
    assert not feeds.covered_only_passively("q")


async def test_news_of_a_provider_wakes_those_who_wait_for_it_and_nobody_stays_on_the_list() -> None:
    changes = Changes()
    with changes.expect(["p", "q"]) as one, changes.expect(["q"]) as two:
        assert set(changes.expected()) == {"p", "q"}
        changes.tell(["p", "r"])
        changes.tell(["p"])
        assert (one.future.done(), two.future.done()) == (True, False)
    assert changes.expected() == ()
    changes.tell(["q"])
    assert two.future.cancelled()


def undecided(*providers: str) -> Decision:
    return Decision(Verdict.REFUSED, wait_for=providers)


def cold_wait(clock: FakeClock, feeds: Feeds, changes: Changes) -> ColdWait:
    return ColdWait(changes, feeds, clock, max_waiters=10)


def test_a_budget_ends_at_the_callers_deadline_or_after_one_cold_wait_for_all_that_share_it() -> None:
    assert WaitBudget(NOW + 10 * WAIT).until(NOW, WAIT) == NOW + WAIT
    assert WaitBudget(NOW + 1).until(NOW, WAIT) == NOW + 1
    shared = WaitBudget(NOW + 10 * WAIT)
    assert shared.until(NOW, WAIT) == shared.until(NOW + WAIT // 2, WAIT) == NOW + WAIT


async def test_a_deadline_that_has_passed_waits_for_nothing() -> None:
    clock, changes = FakeClock(), Changes()
    feeds = Feeds(changes, 10)
    feeds.open(session())
    wait = cold_wait(clock, feeds, changes)
    first = undecided("p")
    budget = WaitBudget(clock.monotonic() - 1)
    assert await wait.settle(lambda: first, first, budget, WAIT) is first
    assert wait.waiting == 0


async def test_every_change_is_looked_at_until_no_doubt_is_left() -> None:
    clock, changes = FakeClock(), Changes()
    feeds = Feeds(changes, 10)
    collector = session()
    feeds.open(collector)
    wait = cold_wait(clock, feeds, changes)
    answers = iter([undecided("p"), undecided("q"), Decision(Verdict.ADMITTED)])
    first = undecided("p")
    settling = asyncio.ensure_future(wait.settle(lambda: next(answers), first, WaitBudget(1 << 62), WAIT))
    for _ in range(3):
        await clock.advance(0)
        changes.tell(changes.expected())
    assert (await settling).verdict is Verdict.ADMITTED
    assert asked(collector) == ["p", "q"]
    assert (wait.waiting, changes.expected()) == (0, ())


async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    clock, changes = FakeClock(), Changes()
    feeds = Feeds(changes, 10)
    feeds.open(session())
    wait = cold_wait(clock, feeds, changes)
    first = undecided("p")
    settling = asyncio.ensure_future(wait.settle(lambda: first, first, WaitBudget(1 << 62), WAIT))
    await clock.advance(0)
    assert wait.waiting == 1
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert (wait.waiting, changes.expected()) == (0, ())


async def test_an_error_in_deciding_again_frees_the_waiters_place() -> None:
    clock, changes = FakeClock(), Changes()
    feeds = Feeds(changes, 10)
    feeds.open(session())
    wait = cold_wait(clock, feeds, changes)

    def fails() -> Decision:
        raise RuntimeError

    settling = asyncio.ensure_future(wait.settle(fails, undecided("p"), WaitBudget(1 << 62), WAIT))
    await clock.advance(0)
    changes.tell(["p"])
    with pytest.raises(RuntimeError):
        await settling
    assert (wait.waiting, changes.expected()) == (0, ())
