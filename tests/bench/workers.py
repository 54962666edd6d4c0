"""One worker process against two, in the shared mode: the servers' processor time for one pinned Admit.

With two cores in all, the generator takes from the workers, and so do PostgreSQL and Valkey: calls a second say little
here, processor time per call says what a second worker costs. Run by `python -m tests.bench workers`.
"""

import tempfile
from pathlib import Path

from tests.bench import calls, generator, results, serving
from tests.bench.rounds import in_turns, ratio
from tests.support.replicas import Place

AIM = 1.1


def main() -> int:
    """Measure, print and keep; 1 when the aim was missed."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        shared = Place.shared(directory)
        stores = {"durable": shared.durable, "live": shared.live}
        keys = {"pins": str(directory / "pins.key"), "tracestate": [str(directory / "tracestate.key")]}
        config = {**serving.CONFIG, "stores": stores, "keys": keys}
        homes = [directory / "one", directory / "two"]
        for home in homes:
            home.mkdir()
        with serving.tidegate(homes[0], config) as one, serving.tidegate(homes[1], config, workers=2) as two:
            for server in (one, two, two, two):  # a worker keeps the pins that it has read; each call finds one of two
                calls.bind_workers(server)
            pinned = generator.write_requests(
                directory / "pinned", (calls.admit(f"w{n}") for n in range(calls.WORKERS))
            )

            def cost(server: serving.Server) -> float:
                return generator.run(server, calls.ADMIT, pinned, in_flight=16, most_bad=0.3).cpu

            seen = in_turns(lambda: cost(two), lambda: cost(one))
    found = ratio(seen)
    print(
        f"processor time of a call, 2 workers : 1  {found} (aim {AIM}); last {seen[-1][0]:.0f} : {seen[-1][1]:.0f} µs"
    )
    results.save("workers", {"ratio": found._asdict(), "two": seen[-1][0], "one": seen[-1][1]})
    return int(found.median > AIM)


if __name__ == "__main__":
    raise SystemExit(main())
