"""A decision in process against LiteLLM's Router picking a deployment in process: four candidates each.

LiteLLM is no dependency of ours: it is installed into an environment of its own, once, under the user's cache.
Run by `python -m tests.bench router`.
"""

import os
import subprocess
import sys
from pathlib import Path

from tidegate_server.core.decide import decide
from tidegate_server.core.model import HealthState, Request, Verdict

from tests.bench import results
from tests.bench.decide import NOW, facts, microseconds, route
from tests.bench.rounds import in_turns, ratio

AIM = 15.0
ENVIRONMENT = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidegate-bench-litellm"

PROGRAM = """
import asyncio, statistics, time
from litellm import Router

names = ("qwen/next", "claude/sonnet", "codex/sol", "openrouter/deepseek")
router = Router(model_list=[
    {"model_name": "routine", "litellm_params": {"model": f"openai/{name}", "api_key": "none", "api_base": "http://127.0.0.1:9"}}
    for name in names
])
messages = [{"role": "user", "content": "hello"}]

async def main():
    rounds = []
    for _ in range(10):
        begun = time.perf_counter()
        for _ in range(200):
            await router.async_get_available_deployment(model="routine", request_kwargs={}, messages=messages)
        rounds.append((time.perf_counter() - begun) / 200 * 1e6)
    print(statistics.median(rounds))

asyncio.run(main())
"""


def litellm() -> float:
    """Microseconds of one pick."""
    python = ENVIRONMENT / "bin" / "python"
    if not (ENVIRONMENT / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "litellm"], check=True)
        (ENVIRONMENT / "ready").touch()
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # nothing is fetched
    done = subprocess.run([str(python), "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout.split()[-1])


def ours() -> float:
    """Microseconds of one decision: a new worker, the first candidate down, the second one bound."""
    policy, groups = route(), facts(HealthState.UNHEALTHY, 60.0).groups
    request = Request("worker", 48_123, "high")
    assert decide(policy, request, None, groups, NOW).verdict is Verdict.ADMITTED
    return microseconds(lambda: decide(policy, request, None, groups, NOW))[1]


def main() -> int:
    """Measure, print and keep; 1 when the aim was missed."""
    litellm()  # the first run makes the environment
    seen = in_turns(litellm, ours)
    found = ratio(seen)
    print(f"LiteLLM's pick : our decision  {found} (aim {AIM}); last {seen[-1][0]:.0f} : {seen[-1][1]:.1f} µs")
    results.save("router", {"ratio": found._asdict(), "ours": seen[-1][1], "litellm": seen[-1][0]})
    return int(found.median < AIM)


if __name__ == "__main__":
    raise SystemExit(main())
