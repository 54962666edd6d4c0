"""Polls the address of a mapping."""

from tidegate_collectors.auth import fingerprint
from tidegate_collectors.config import Entry
from tidegate_collectors.facts import Reading, failure
from tidegate_collectors.generic.evaluate import GenericParser
from tidegate_collectors.generic.mapping import Liveness
from tidegate_collectors.payload import Response
from tidegate_collectors.poll import Fetcher
from tidegate_collectors.providers.engines import dead, loading


class MappingReader:
    """Asks the liveness address, if there is one, then the page or document."""

    def __init__(self, entry: Entry, fetcher: Fetcher) -> None:
        part = entry.prometheus or entry.http
        if part is None:
            raise ValueError(f"{entry.name}: nothing to poll")
        self.credential = ""
        self._entry = entry
        self._part = part
        self._fetcher = fetcher
        self._parse = GenericParser(entry)

    async def read(self, *, refresh: bool) -> Reading:
        """Read once."""
        liveness = self._entry.liveness
        if liveness:
            response = await self._fetcher.get(liveness.url, headers={}, timeout=self._part.timeout)
            ill = self._ill(liveness, response)
            if ill:
                return ill
        shown = self._part.auth.show()
        self.credential = fingerprint(shown)
        answer = await self._fetcher.get(self._part.url, headers=shown, timeout=self._part.timeout)
        return self._parse(answer, self._entry.source)

    def _ill(self, liveness: Liveness, response: Response) -> Reading | None:
        rule = liveness.loading
        if rule and response.status == rule.status and rule.body_contains in response.text:
            return Reading(facts=(loading(self._entry.source),))
        if response.status in liveness.ok:
            return None
        if response.status >= 500:
            return Reading(facts=(dead(self._entry.source),))
        return failure(f"the liveness address answered HTTP {response.status}")
