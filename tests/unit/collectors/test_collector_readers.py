"""Files and programs as sources: how old they are, and what happens when they fail."""

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tidegate_collectors.config import check
from tidegate_collectors.facts import Reading
from tidegate_collectors.poll import PollError
from tidegate_collectors.readers import CommandReader, FileReader
from tidegate_collectors.vocabulary import record

NOW = datetime(2026, 10, 20, 12, tzinfo=UTC)
SAMPLES = Path(__file__).parents[2] / "vectors/signals/samples"
STATUS = {"rate_limits": {"five_hour": {"used_percentage": 23.5, "resets_at": 1792510200}}}


class Standing:
    """A clock that stands."""

    def monotonic(self) -> float:
        return 0.0

    def now(self) -> datetime:
        return NOW

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here waits")


async def read_files(preset: str, *patterns: Path, **options: Any) -> Reading:
    settings = {"preset": preset, "provider": "p", "files": [str(pattern) for pattern in patterns], "options": options}
    entry = check({"collectors": [settings]}).collectors[0]
    assert entry.kind is not None
    return await FileReader(entry, entry.kind, Standing()).read(refresh=False)


def write(path: Path, content: str, age: timedelta = timedelta()) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    written = (NOW - age).timestamp()
    os.utime(path, (written, written))
    return path


async def test_a_file_is_as_old_as_it_was_written_and_not_as_it_was_read(tmp_path: Path) -> None:
    path = write(tmp_path / "status.json", json.dumps(STATUS), timedelta(minutes=5))
    (fact,) = (await read_files("claude-statusline", path)).facts
    assert fact.observed_at == NOW - timedelta(minutes=5)


async def test_a_file_that_is_older_than_its_facts_hold_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "status.json", json.dumps(STATUS), timedelta(minutes=16))
    reading = await read_files("claude-statusline", path)
    assert reading.facts == ()
    assert "older" in reading.error


async def test_session_files_are_found_and_the_newest_line_wins(tmp_path: Path) -> None:
    lines = (SAMPLES / "codex-rollout-conflict.txt").read_text().splitlines()
    write(tmp_path / "2026/10/19/rollout-a.jsonl", lines[1] + "\n", timedelta(hours=1))
    write(tmp_path / "2026/10/20/rollout-b.jsonl", lines[0] + "\nnot json\n" + lines[2] + "\n")
    reading = await read_files("codex-rollout", tmp_path / "**/rollout-*.jsonl")
    told = {fact["window"]: fact["remaining_pct"] for fact in map(record, reading.facts)}
    assert told == {"5h": 59.0, "7d": 100.0}


async def test_lines_from_before_the_present_login_are_another_account_s(tmp_path: Path) -> None:
    write(tmp_path / "rollout-a.jsonl", (SAMPLES / "codex-rollout-conflict.txt").read_text())
    reading = await read_files("codex-rollout", tmp_path / "rollout-*.jsonl", since="2026-10-20T11:58:30Z")
    assert {fact["resets_at"] for fact in map(record, reading.facts)} == {
        "2026-10-20T15:30:00Z",
        "2026-10-20T12:20:00Z",
    }


async def test_no_such_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PollError, match="no such files"):
        await read_files("codex-rollout", tmp_path / "**/rollout-*.jsonl")


PROGRAM = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        print(json.dumps({"id": message["id"], "result": {}}), flush=True)
    elif message.get("method") == "account/rateLimits/read":
        print(json.dumps({"method": "something/else", "params": {}}), flush=True)
        print(json.dumps({**json.load(open(sys.argv[1])), "id": message["id"]}), flush=True)
"""


async def ask(*command: str, timeout: str = "10s") -> Reading:
    settings = {"preset": "codex-app-server", "provider": "p", "command": list(command), "timeout": timeout}
    entry = check({"collectors": [settings]}).collectors[0]
    assert entry.kind is not None
    return await CommandReader(entry, entry.kind, Standing()).read(refresh=False)


async def test_the_vendor_s_program_is_asked_in_its_own_protocol() -> None:
    reading = await ask(sys.executable, "-c", PROGRAM, str(SAMPLES / "codex-app-server.json"))
    assert [fact["fact"] for fact in map(record, reading.facts)] == ["quota", "quota", "blocker"]


@pytest.mark.parametrize(
    "command", [["/nowhere/codex"], [sys.executable, "-c", ""], [sys.executable, "-c", "print('hi')"]]
)
async def test_a_program_that_is_missing_or_speaks_otherwise_is_an_error(command: list[str]) -> None:
    with pytest.raises(PollError):
        await ask(*command)


async def test_a_program_that_says_nothing_is_ended_in_time() -> None:
    with pytest.raises(PollError, match="no answer within"):
        await ask(sys.executable, "-c", "import sys; sys.stdin.read()", timeout="100ms")
