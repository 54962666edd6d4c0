"""A process of its own that drives the store, so that a test can kill it or put a failing disk under it.

It reads one line a command and answers each with one line of JSON. `load N` never ends: it stores pins for ever and
tells each one that it was promised, as a server would tell its callers.
"""

import asyncio
import json
import sys
from pathlib import Path

from tidegate_server.core.model import Pin
from tidegate_server.errors import StoreUnavailable, UnsafeState
from tidegate_server.ports import PinFilter
from tidegate_server.stores.sqlite_pins import SqlitePinStore

from tests.contract.pin_samples import make_pin
from tests.integration.pins.places import open_pins


def say(**words: object) -> None:
    """Answer with one line."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


async def do(store: SqlitePinStore, command: str, name: str) -> dict[str, object]:
    """One command."""
    try:
        if command == "create":
            stored, created = await store.create(make_pin(name))
            return {"stored": isinstance(stored, Pin) and stored.candidate, "created": created}
        if command == "burst":  # NAME is a number: so many pins at once
            await asyncio.gather(*(store.create(make_pin(f"burst {n}")) for n in range(int(name))))
            return {"stored": int(name)}
        if command == "get":
            pin = await store.get(make_pin(name).pin_id)
            return {"found": isinstance(pin, Pin) and pin.candidate, "retired": isinstance(pin, Pin) and pin.retired}
        if command == "retire":
            which = PinFilter(pin_id=make_pin(name).pin_id)
            return {"retired": await store.retire(which, who="ops", when=1, why="test", dry_run=False)}
        if command == "verify":
            return dict((await store.verify())._asdict())
    except StoreUnavailable:
        return {"unavailable": True}
    return {"healthy": store.healthy(), "warnings": list(store.warnings())}


async def load(store: SqlitePinStore, first: int) -> None:
    """Sixteen callers, each storing one pin after the other; two of each pair fight for the same worker."""

    async def caller(number: int) -> None:
        for n in range(first, 1 << 60):
            pin = make_pin(f"{number // 2} {n}", candidate=f"{('claude', 'codex')[number % 2]}/m")
            stored, created = await store.create(pin)
            assert isinstance(stored, Pin)
            say(name=f"{number // 2} {n}", candidate=stored.candidate, created=created)
            if n % 50 == 0:
                await store.retire(PinFilter(pin_id=pin.pin_id), who="ops", when=1, why="test", dry_run=False)
                say(retired=f"{number // 2} {n}")

    await asyncio.gather(*(caller(number) for number in range(16)))


async def main(state: Path) -> None:
    """Serve standard input until it ends."""
    try:
        store = await open_pins(state)
    except UnsafeState as refusal:
        say(refused=str(refusal))
        return
    say(ready=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command, _, name = line.strip().partition(" ")
        if command == "load":
            await load(store, int(name))
        else:
            say(**await do(store, command, name))
    await store.close()
    say(closed=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
