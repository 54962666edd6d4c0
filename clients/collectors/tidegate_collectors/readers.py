"""How a collector comes by one answer: from an engine's pages, an endpoint, files, or a vendor's own program.

A reader either returns a reading or raises `PollError` or `SecretError`: then nothing is said.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from tidegate_collectors.auth import fingerprint
from tidegate_collectors.clock import Clock
from tidegate_collectors.config import Entry
from tidegate_collectors.facts import Health, Reading, failure, merged
from tidegate_collectors.payload import MAX_BODY, Response
from tidegate_collectors.poll import Fetcher, PollError
from tidegate_collectors.presets import Preset
from tidegate_collectors.providers.engines import EngineParser

CANARY_INTERVAL = 30.0
"""Seconds between two canaries of one engine, at the least (§6 of the contract)."""
_TAIL = 256 * 1024
_NEWEST_FILES = 8


class Reader(Protocol):
    """One way to read. `credential` tells which credential the last reading used; it changes when that does."""

    credential: str

    async def read(self, *, refresh: bool) -> Reading:
        """Read once. With `refresh`, which the server asked for, nothing but meters and pages is touched."""
        ...


class PageReader:
    """Gets the pages of a preset, in order, and joins what they say."""

    def __init__(self, entry: Entry, preset: Preset, fetcher: Fetcher, clock: Clock) -> None:
        self.credential = ""
        self._entry = entry
        self._preset = preset
        self._fetcher = fetcher
        self._clock = clock
        self._parse = preset.reads_polled()
        self._base = (entry.url or preset.url).rstrip("/")
        self._canary_at: float | None = None

    async def read(self, *, refresh: bool) -> Reading:
        """Ask the liveness endpoint, then the pages; an engine that is loading or dead is not asked further."""
        headers = self._headers()
        if self._preset.liveness:
            response = await self._get(self._preset.liveness, headers)
            if response.status in (500, 503):
                return self._parse(response, self._entry.source)
        reading = await self._pages(headers)
        if not refresh and self._stands_still(reading) and await self._canary(reading, headers):
            reading = await self._pages(headers)
        return reading

    async def _pages(self, headers: Mapping[str, str]) -> Reading:
        paths = (self._entry.path,) if self._entry.path else self._preset.paths
        readings = []
        for path in paths:
            reading = self._parse(await self._get(path, headers), self._entry.source)
            if reading.ok or path not in self._preset.optional:
                readings.append(reading)
        if not readings:
            return failure("none of the engine's optional pages is served")
        return readings[0] if len(readings) == 1 else _joined(readings)

    async def _get(self, path: str, headers: Mapping[str, str]) -> Response:
        return await self._fetcher.get(self._base + path, headers=headers, timeout=self._entry.timeout)

    def _headers(self) -> dict[str, str]:
        shown = self._entry.auth.show()
        self.credential = fingerprint(shown)
        return {**self._preset.headers, **shown}

    def _stands_still(self, reading: Reading) -> bool:
        return any(isinstance(fact, Health) and fact.reason.startswith("no_progress") for fact in reading.facts)

    async def _canary(self, reading: Reading, headers: Mapping[str, str]) -> bool:
        """Send one one-token request, if that is configured and not too soon; True when the engine answered it."""
        canary, now = self._entry.canary, self._clock.monotonic()
        if canary is None or (self._canary_at is not None and now - self._canary_at < CANARY_INTERVAL):
            return False
        self._canary_at = now
        model = canary.model or next((fact.model for fact in reading.facts if fact.model), "")
        body = {"model": model, "prompt": "ping", "max_tokens": 1}
        try:
            response = await self._fetcher.post(
                self._base + canary.path, headers=headers, json=body, timeout=canary.timeout
            )
        except PollError:
            return False
        if response.ok and isinstance(self._parse, EngineParser):
            self._parse.progress.reset()
        return response.ok


class FileReader:
    """Reads the newest of the files that another program writes; they are as old as they were written."""

    def __init__(self, entry: Entry, preset: Preset, clock: Clock) -> None:
        self.credential = ""
        self._entry = entry
        self._clock = clock
        self._parse = preset.reads_polled()

    async def read(self, *, refresh: bool) -> Reading:
        """Read the tails of the newest files, oldest first."""
        try:
            content, written = await asyncio.to_thread(self._content)
        except OSError as error:
            raise PollError(f"a file cannot be read: {error.strerror}") from None
        now = self._clock.now()
        reading = self._parse(Response(content, now), self._entry.source)
        facts = tuple(
            fact if fact.observed_at else replace(fact, observed_at=min(written, now)) for fact in reading.facts
        )
        fresh = tuple(fact for fact in facts if now - (fact.observed_at or now) < timedelta(seconds=fact.ttl or 900))
        if facts and not fresh:
            return failure("the files are older than what they say holds")
        return replace(reading, facts=fresh)

    def _content(self) -> tuple[bytes, datetime]:
        found: list[tuple[float, Path]] = []
        for pattern in self._entry.files:
            matches = _glob(Path(pattern).expanduser())
            found += [(match.stat().st_mtime, match) for match in matches if match.is_file()]
        if not found:
            raise PollError("no such files")
        newest = sorted(found)[-_NEWEST_FILES:]
        written = datetime.fromtimestamp(newest[-1][0], UTC)
        return b"\n".join(_tail(path) for _, path in newest)[-MAX_BODY:], written


class CommandReader:
    """Asks `codex app-server` over its standard input and output: JSON-RPC, one message a line."""

    METHOD = "account/rateLimits/read"

    def __init__(self, entry: Entry, preset: Preset, clock: Clock) -> None:
        self.credential = ""
        self._entry = entry
        self._clock = clock
        self._parse = preset.reads_polled()
        self._command = entry.command or ("codex", "app-server")

    async def read(self, *, refresh: bool) -> Reading:
        """Start the program, ask, and end it."""
        try:
            async with asyncio.timeout(self._entry.timeout):
                body = await self._ask()
        except TimeoutError:
            raise PollError(f"{self._command[0]}: no answer within {self._entry.timeout:g} s") from None
        return self._parse(Response(body, self._clock.now()), self._entry.source)

    async def _ask(self) -> bytes:
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, limit=MAX_BODY
            )
        except OSError as error:
            raise PollError(f"{self._command[0]}: {error.strerror}") from None
        try:
            if process.stdin is None or process.stdout is None:
                raise PollError(f"{self._command[0]}: no pipes")
            client = {"clientInfo": {"name": "tidegate", "title": "Tidegate", "version": "1"}}
            await _tell(process.stdin, {"id": 1, "method": "initialize", "params": client})
            await _answer(process.stdout, 1)
            await _tell(process.stdin, {"method": "initialized"})
            await _tell(process.stdin, {"id": 2, "method": self.METHOD})
            return await _answer(process.stdout, 2)
        except (OSError, ValueError):
            raise PollError(f"{self._command[0]}: ended or spoke no JSON lines") from None
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _tell(stream: asyncio.StreamWriter, message: Mapping[str, object]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    await stream.drain()


async def _answer(stream: asyncio.StreamReader, number: int) -> bytes:
    """Return the line that answers request `number`; notifications in between are passed over."""
    while True:
        line = await stream.readline()
        if not line:
            raise ValueError("the program ended")
        message = json.loads(line)
        if isinstance(message, dict) and message.get("id") == number:
            return line


def _glob(path: Path) -> list[Path]:
    """Return what a pattern finds below the part of it that has no `*`."""
    parts = path.parts
    fixed = next((index for index, part in enumerate(parts) if "*" in part), len(parts) - 1)
    return list(Path(*parts[:fixed]).glob("/".join(parts[fixed:])))


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        return file.read(_TAIL)


def _joined(readings: list[Reading]) -> Reading:
    """Join the pages of one engine: what the first does not tell, a later one may."""
    whole = merged(readings)
    facts: list[Health] = []
    for fact in whole.facts:
        if not isinstance(fact, Health):
            continue
        same = next((index for index, known in enumerate(facts) if known.model == fact.model), None)
        if same is None:
            facts.append(fact)
        else:
            facts[same] = _filled(facts[same], fact)
    others = tuple(fact for fact in whole.facts if not isinstance(fact, Health))
    return replace(whole, facts=(*facts, *others))


def _filled(known: Health, later: Health) -> Health:
    names = ("running", "waiting", "kv_usage", "slots_total", "slots_free")
    missing = {name: getattr(later, name) for name in names if getattr(known, name) is None}
    return replace(known, **missing)
