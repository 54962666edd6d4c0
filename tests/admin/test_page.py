"""The page in a real browser: what it shows, that it runs nothing foreign, that everybody can use it.

Screenshots are left in the folder that TIDEGATE_SCREENSHOTS names, else in the test's own.
"""

import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Request, async_playwright, expect
from tidegate.v1 import flow_pb2, flow_pb2_grpc

from tests.admin.scene import HOSTILE, SCENE, TRACES, Http, admin, play
from tests.integration.server.harness import identity, quota

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

expect.set_options(timeout=20_000)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (the Debian package chromium)")

WIDE = {"viewport": {"width": 1280, "height": 900}}
PATIENCE_MS = 20_000
"""For what has to show, on a machine that does much else."""

PHONE = {"viewport": {"width": 320, "height": 700}, "has_touch": True}


class Opened:
    """The page in a browser window, with all that the browser complained of or asked for."""

    def __init__(self, page: Page, http: Http) -> None:
        self.page = page
        self.http = http
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("request", self._ask)

    def _ask(self, request: Request) -> None:
        self.asked.append(request.url)

    async def whole(self) -> None:
        """Return when every part has been drawn."""
        await self.page.goto(self.http.base)
        for part in (".route", ".provider", ".decision", ".flow", ".figure"):
            await self.page.wait_for_selector(part)

    async def shoot(self, tmp_path: Path, name: str) -> None:
        """Leave a picture of the whole page."""
        folder = Path(os.environ.get("TIDEGATE_SCREENSHOTS", str(tmp_path)))
        folder.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=folder / f"{name}.png", full_page=True)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = await playwright.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        try:
            yield opened
        finally:
            await opened.close()


@asynccontextmanager
async def opened(tmp_path: Path, window: dict[str, Any] = WIDE, **settings: Any) -> AsyncIterator[Opened]:
    """The scene, played, and the page open on it but not yet asked for."""
    async with admin(tmp_path, SCENE, **settings) as http:
        if "identities" not in settings:
            await http.written(await play(http.served))
        async with browser() as chromium:
            context = await chromium.new_context(**window)
            context.set_default_timeout(PATIENCE_MS)
            yield Opened(await context.new_page(), http)


async def test_a_stranger_sees_where_a_new_worker_would_go_and_why(tmp_path: Path) -> None:
    async with opened(tmp_path) as it:
        await it.whole()
        strong = it.page.locator(".route", has=it.page.get_by_role("heading", name="managed/strong"))
        await expect(strong.locator(".answer")).to_contain_text("no eligible candidate")
        await expect(strong).to_contain_text("Would help")
        routine = it.page.locator(".route", has=it.page.get_by_role("heading", name="managed/routine"))
        await expect(routine.locator(".answer strong")).to_have_text("qwen/qwen-next")
        await expect(routine).to_contain_text("The first eligible candidate is bound")
        await expect(routine.locator(".candidates > li")).to_have_count(4)
        paid = it.page.locator(".route", has=it.page.get_by_role("heading", name="managed/accounts"))
        await expect(paid.locator(".answer strong")).to_have_text("or-deepseek")
        await expect(paid).to_contain_text("Money may be spent")
        await it.shoot(tmp_path, "light")
        assert it.complaints == []


async def test_bars_stand_against_the_reserve_and_fade_with_age(tmp_path: Path) -> None:
    async with opened(tmp_path) as it:
        await it.whole()
        claude = it.page.locator(".provider", has=it.page.get_by_role("heading", name="claude"))
        five, seven = claude.get_by_role("meter", name="claude 5h"), claude.get_by_role("meter", name="claude 7d")
        assert await five.get_attribute("aria-valuenow") == "72.0"
        assert "15\u202f% is the reserve of managed/strong" in (await five.get_attribute("aria-valuetext") or "")
        await expect(five.locator(".limit")).to_have_count(2)
        await expect(claude).to_contain_text("below the reserve of managed/strong")
        opacity = "e => Number(getComputedStyle(e.querySelector('.fill')).opacity)"
        assert await five.evaluate(opacity) > await seven.evaluate(opacity) > 0.2
        codex = it.page.locator(".provider", has=it.page.get_by_role("heading", name="codex"))
        await expect(codex).to_contain_text("below the reserve")
        await it.http.served.report(quota("codex", 60, "7d", age=1_000), collector="late")
        await expect(codex.locator(".measure.stale")).to_contain_text("stale")


async def test_decisions_come_by_themselves_and_open_into_their_whole_explanation(tmp_path: Path) -> None:
    async with opened(tmp_path) as it:
        await it.whole()
        rows = it.page.locator(".decision")
        before = await rows.count()
        await it.http.served.admit("managed/strong", "one-more")
        await expect(rows).to_have_count(before + 1)
        await expect(rows.first).to_contain_text("managed/strong")
        await rows.first.focus()
        await it.page.keyboard.press("Enter")
        sheet = it.page.get_by_role("dialog")
        await expect(sheet).to_contain_text("Smallest change that would admit")
        await expect(sheet).to_contain_text("Of every candidate it is known that it cannot take the work now.")
        await expect(sheet.locator(".candidates > li")).to_have_count(2)
        await sheet.get_by_text("Everything that it read").click()
        await expect(sheet.locator("pre")).to_contain_text('"min_remaining_percent": 15')
        await it.page.keyboard.press("Escape")
        await expect(sheet).to_be_hidden()
        assert await rows.first.evaluate("e => e === document.activeElement"), "focus goes back to where it was"
        assert it.complaints == []


async def test_the_list_can_be_paused_and_filtered(tmp_path: Path) -> None:
    async with opened(tmp_path) as it:
        await it.whole()
        rows = it.page.locator(".decision")
        await it.page.get_by_label("Show only").fill("modality")
        await expect(rows).to_have_count(1)
        await it.page.get_by_label("Show only").fill("")
        before = await rows.count()
        await it.page.get_by_role("button", name="Pause").click()
        async with it.page.expect_response(re.compile("/api/rates")):
            await it.http.served.admit("managed/local", "while-paused")
            await it.http.written(before + 1)
        assert await rows.count() == before
        await it.page.get_by_role("button", name="Go on").click()
        await expect(rows).to_have_count(before + 1)


async def test_flows_are_trees_with_five_gauges(tmp_path: Path) -> None:
    async with opened(tmp_path) as it:
        await it.whole()
        flow = it.page.locator(f'[data-key="{TRACES[0]}"]')
        await expect(flow.locator(".gauge")).to_have_count(5)
        for name, text in (("Depth", "3 of 4"), ("Fan-out", "5 of 8"), ("Tokens", "45\u202f545 of 60\u202f000")):
            assert await flow.get_by_role("meter", name=name).get_attribute("aria-valuetext") == text
        nested = flow.locator(".tree > li > ul > li > ul > li", has_text="reviewer")
        await expect(nested).to_have_count(1)
        await expect(flow.locator("li", has_text="tester").last).to_contain_text("failed")


async def test_a_refused_hop_shows_while_it_happens(tmp_path: Path) -> None:
    async with opened(tmp_path) as it:
        await it.whole()
        await play_again(it.http)
        flow = it.page.locator(f'[data-key="{TRACES[2]}"]')
        await expect(flow).to_contain_text("flow unknown")


async def play_again(http: Http) -> None:
    """A hop from an agent that was never called."""
    flows = flow_pb2_grpc.FlowServiceStub(http.served.channel)
    context = f"00-{TRACES[2]}-00f067aa0ba902b7-01"
    request = flow_pb2.EnterHopRequest(traceparent=context, caller_agent="stranger", target_agent="x")
    assert (await flows.EnterHop(request)).refusal.code == "flow_unknown"


async def test_hostile_names_are_text_and_no_other_host_is_asked(tmp_path: Path) -> None:
    async with opened(tmp_path) as it:
        await it.whole()
        await expect(it.page.locator(".flow h3", has_text=HOSTILE)).to_have_count(1)
        await it.page.locator(".decision", has_text="modality").click()
        await expect(it.page.get_by_role("dialog")).to_contain_text(HOSTILE)
        assert await it.page.title() == "Tidegate"
        assert await it.page.locator("main img, dialog img").count() == 0
        assert {url.split("/")[2] for url in it.asked} == {it.http.base.split("/")[2]}
        assert it.complaints == []


async def test_what_somebody_opened_or_focused_stays_while_numbers_change(tmp_path: Path) -> None:
    async with opened(tmp_path) as it:
        await it.whole()
        details = it.page.locator(".provider details").first
        await details.locator("summary").click()
        async with it.page.expect_response(re.compile("/api/capacity")):
            pass
        async with it.page.expect_response(re.compile("/api/capacity")):
            pass
        assert await details.get_attribute("open") is not None
        assert await details.locator("summary").evaluate("e => e === document.activeElement")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("window", ["wide", "phone"])
async def test_axe_finds_nothing(tmp_path: Path, scheme: str, window: str) -> None:
    size = WIDE if window == "wide" else PHONE
    async with opened(tmp_path, {**size, "color_scheme": scheme, "reduced_motion": "reduce"}) as it:
        await it.whole()
        for place in ("page", "dialog"):
            if place == "dialog":
                await it.page.locator(".decision", has_text="managed/strong").first.click()
                await it.page.wait_for_selector(".sheet")
            found = await Axe().run(it.page)
            assert found.violations_count == 0, f"{place}: {found.generate_report()}"
        await it.page.keyboard.press("Escape")
        await it.shoot(tmp_path, f"{window}-{scheme}")


async def test_a_phone_needs_no_scrolling_to_the_side(tmp_path: Path) -> None:
    async with opened(tmp_path, PHONE) as it:
        await it.whole()
        assert await it.page.evaluate("document.documentElement.scrollWidth") == 320
        await it.page.locator(".decision").first.click()
        await it.page.wait_for_selector(".sheet")
        assert await it.page.evaluate("document.querySelector('dialog').getBoundingClientRect().right") <= 320


async def test_the_keyboard_alone_gets_everywhere(tmp_path: Path) -> None:
    async with opened(tmp_path) as it:
        await it.whole()
        await it.page.keyboard.press("Tab")
        assert await it.page.evaluate("document.activeElement.textContent") == "Skip to the content"
        await it.page.keyboard.press("Enter")
        assert await it.page.evaluate("document.activeElement.id") == "main"
        reached = set()
        for _ in range(80):
            await it.page.keyboard.press("Tab")
            reached.add(await it.page.evaluate("document.activeElement.closest('section')?.id ?? ''"))
        assert {"now", "capacity", "decisions", "rates"} <= reached


async def test_the_theme_is_the_readers_and_kept(tmp_path: Path) -> None:
    async with opened(tmp_path, {**WIDE, "color_scheme": "light"}) as it:
        await it.whole()
        ground = "getComputedStyle(document.body).backgroundColor"
        light = await it.page.evaluate(ground)
        theme = it.page.get_by_role("button", name="Theme")
        await theme.click()
        await theme.click()
        await expect(theme).to_have_accessible_name("Theme: dark")
        dark = await it.page.evaluate(ground)
        assert dark != light
        await it.page.reload()
        assert await it.page.evaluate(ground) == dark


async def test_a_token_is_asked_for_once_and_kept_in_the_tab(tmp_path: Path) -> None:
    people = [identity("v", "viewer"), identity("g", "gateway", startFlows=True)]
    async with opened(tmp_path, identities=people) as it:
        page = it.page
        await page.goto(it.http.base)
        token = page.get_by_label("Token")
        await expect(token).to_be_visible()
        await expect(token).to_be_focused()
        await expect(page.locator("#capacity")).to_be_hidden()
        await token.fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).not_to_be_empty()
        await page.get_by_label("Token").fill("v-token")
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".provider")
        await page.reload()
        await page.wait_for_selector(".provider")
        assert not [url for url in it.asked if "token" in url]
        await page.get_by_role("button", name="Forget the token").click()
        await expect(page.get_by_label("Token")).to_be_visible()


async def test_an_operator_sees_what_is_wrong(tmp_path: Path) -> None:
    async with opened(tmp_path) as it:
        it.http.served.directory.joinpath("tidegate.json").write_text('{"listen": 5}')
        await it.http.served.running.reload()
        await it.whole()
        await expect(it.page.locator("#warnings")).to_contain_text("an older one serves")
