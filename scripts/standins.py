"""Stand-ins on loopback for what an operator has: `engine`, a local vLLM, and `accounts`, three providers' endpoints.

They answer in the real ones' shapes, with values that move. Nothing here reports a fact: collectors read these pages.
"""

import argparse
import json
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "Qwen/Qwen3.8-Flash-Next"
STARTED = time.monotonic()

METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} {kv:.4f}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="{model}"}} {tokens}
# TYPE vllm:engine_sleep_state gauge
vllm:engine_sleep_state{{engine="0",model_name="{model}",sleep_state="awake"}} 1
vllm:engine_sleep_state{{engine="0",model_name="{model}",sleep_state="weights_offloaded"}} 0
vllm:engine_sleep_state{{engine="0",model_name="{model}",sleep_state="discard_all"}} 0
"""


class Quiet(BaseHTTPRequestHandler):
    """Answers GET by `page`, and logs nothing."""

    def do_GET(self) -> None:
        """Answer with a page, or 404."""
        found = self.page(self.path.partition("?")[0])
        kind, body = found if found is not None else ("text/plain", b"not found")
        self.send_response(200 if found is not None else 404)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def page(self, path: str) -> tuple[str, bytes] | None:
        """The content type and the body; None: there is no such page."""
        raise NotImplementedError

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Engine(Quiet):
    """vLLM: /health and /metrics."""

    def page(self, path: str) -> tuple[str, bytes] | None:
        """The engine's pages."""
        if path == "/health":
            return "text/plain", b""
        if path == "/metrics":
            seconds = time.monotonic() - STARTED
            page = METRICS.format(
                model=MODEL, running=1 + int(seconds) % 3, kv=0.2 + 0.1 * (int(seconds) % 4), tokens=int(seconds * 90)
            )
            return "text/plain; version=0.0.4", page.encode()
        return None


class Accounts(Quiet):
    """A Claude subscription, a Codex subscription and an OpenRouter key."""

    def page(self, path: str) -> tuple[str, bytes] | None:
        """The accounts' endpoints."""
        pages = {
            "/api/oauth/usage": claude_usage,
            "/backend-api/wham/usage": codex_usage,
            "/api/v1/key": openrouter_key,
        }
        if path not in pages:
            return None
        return "application/json", json.dumps(pages[path](datetime.now(UTC))).encode()


def claude_usage(now: datetime) -> dict[str, object]:
    """Percent used, 0 to 100, with ISO times."""
    return {
        "five_hour": {"utilization": 11.0, "resets_at": (now + timedelta(hours=3)).isoformat()},
        "seven_day": {"utilization": 42.0, "resets_at": (now + timedelta(days=4)).isoformat()},
        "seven_day_opus": None,
        "extra_usage": {"is_enabled": False, "monthly_limit": None, "used_credits": None, "utilization": None},
    }


def codex_usage(now: datetime) -> dict[str, object]:
    """Percent used, with the windows' lengths in seconds and epoch times."""

    def window(used: float, seconds: int, left: int) -> dict[str, object]:
        reset_at = int((now + timedelta(seconds=left)).timestamp())
        return {
            "used_percent": used,
            "limit_window_seconds": seconds,
            "reset_after_seconds": left,
            "reset_at": reset_at,
        }

    return {
        "plan_type": "plus",
        "rate_limit": {
            "allowed": True,
            "limit_reached": False,
            "primary_window": window(37, 18_000, 7200),
            "secondary_window": window(64, 604_800, 260_000),
        },
        "additional_rate_limits": None,
        "credits": {"has_credits": False, "unlimited": False, "balance": "0"},
    }


def openrouter_key(_: datetime) -> dict[str, object]:
    """A capped key."""
    return {
        "data": {
            "label": "stand-in",
            "limit": 30,
            "limit_remaining": 8.1,
            "limit_reset": "monthly",
            "usage": 21.9,
            "is_free_tier": False,
            "is_management_key": False,
        }
    }


def main() -> None:
    """Serve one of them until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("engine", "accounts"))
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    handler = Engine if arguments.what == "engine" else Accounts
    ThreadingHTTPServer.allow_reuse_address = True
    ThreadingHTTPServer(("127.0.0.1", arguments.port), handler).serve_forever()


if __name__ == "__main__":
    main()
