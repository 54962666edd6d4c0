"""The collectors that ship: what each reads, how often, what that costs, and what the vendor says about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tidegate_collectors.facts import Reading, Source
from tidegate_collectors.payload import Response
from tidegate_collectors.providers import (
    anthropic,
    claude,
    codex,
    copilot,
    deepseek,
    gemini,
    openai,
    openrouter,
    residency,
    statuspage,
)
from tidegate_collectors.providers.engines import EngineParser
from tidegate_collectors.providers.llamacpp import LLAMACPP, LlamaCppParser
from tidegate_collectors.providers.sglang import SGLANG
from tidegate_collectors.providers.tgi import TGI, TgiParser
from tidegate_collectors.providers.vllm import NIM, VLLM

Parse = Callable[[Response, Source], Reading]


class Via(StrEnum):
    """How a collector comes by its answers."""

    ENGINE = "engine"
    """Polls a local engine; `url` is its base."""
    HTTP = "http"
    """Polls an endpoint of a provider."""
    OBSERVER = "observer"
    """Is handed responses by the gateway; makes no request of its own."""
    FILES = "files"
    """Reads files that another program writes."""
    COMMAND = "command"
    """Asks a vendor's own program, over its standard input and output."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Preset:
    """One kind of collector."""

    name: str
    title: str
    via: Via
    parser: Callable[[], Parse]
    """Makes a parser of all shapes that the provider has; each collector has one of its own, since some remember."""
    polls: Parse | None = None
    """Reads what is polled, where the provider has other shapes, too: a meter's trouble is no account's."""
    observes: Parse | None = None
    """Reads live responses, where the provider has other shapes, too."""
    url: str = ""
    """Where it asks, unless configured; for an engine nothing, its base is always configured."""
    paths: tuple[str, ...] = ("",)
    """What is asked for under `url`, in this order."""
    liveness: str = ""
    """Path that tells whether the engine behind the page lives."""
    optional: frozenset[str] = frozenset()
    """Paths whose failure is no failure of the collector as long as another path answers."""
    headers: Mapping[str, str] = field(default_factory=dict)
    every: float = 60.0
    """Seconds between two readings."""
    least: float = 1.0
    """Seconds between two readings, at the least."""
    advisory: bool = False
    """Whether it tells nothing that the server is sent: then it opens no feed, and covers no provider."""
    official: bool = True
    """Whether the vendor documents it. What is not official runs only with `unofficial: true`."""
    reads: str = ""
    cost: str = "one small request"
    note: str = ""

    def reads_polled(self) -> Parse:
        """Return the parser of a collector that polls."""
        return self.polls or self.parser()

    def reads_live(self) -> Parse:
        """Return the parser of a collector that is handed responses."""
        return self.observes or self.parser()


def _plain(parse: Parse) -> Callable[[], Parse]:
    return lambda: parse


_ALL = (
    Preset(
        name="vllm",
        title="vLLM",
        via=Via.ENGINE,
        parser=lambda: EngineParser(VLLM),
        paths=("/metrics",),
        liveness="/health",
        every=5,
        reads="running, waiting, KV usage, sleep state, and whether the counters move",
        cost="one page; it does not wake or load anything",
    ),
    Preset(
        name="nim",
        title="NVIDIA NIM",
        via=Via.ENGINE,
        parser=lambda: EngineParser(NIM),
        paths=("/v1/metrics",),
        liveness="/v1/health/ready",
        every=5,
        reads="as vLLM, with and without the prefix of its names",
        cost="one page",
    ),
    Preset(
        name="sglang",
        title="SGLang",
        via=Via.ENGINE,
        parser=lambda: EngineParser(SGLANG),
        paths=("/metrics",),
        every=5,
        reads="running, queued, token usage of every pool, throughput; needs --enable-metrics",
        cost="one page; /health is never called, since it generates a token",
    ),
    Preset(
        name="llamacpp",
        title="llama.cpp server",
        via=Via.ENGINE,
        parser=lambda: LlamaCppParser(LLAMACPP),
        paths=("/metrics", "/slots"),
        liveness="/health",
        optional=frozenset({"/metrics", "/slots"}),
        every=5,
        reads="processing, deferred, busy slots; loading; needs --metrics or --slots, and `model`",
        cost="three small pages; not for a router, whose models a scrape may load",
    ),
    Preset(
        name="llamacpp-router",
        title="llama.cpp router",
        via=Via.ENGINE,
        parser=lambda: LlamaCppParser(LLAMACPP),
        paths=("/models",),
        every=5,
        reads="which models are loaded, loading, sleeping, failed",
        cost="one list; nothing is loaded by it",
    ),
    Preset(
        name="tgi",
        title="Text Generation Inference",
        via=Via.ENGINE,
        parser=lambda: TgiParser(TGI),
        paths=("/metrics",),
        liveness="/health",
        every=5,
        reads="batch size, queue size; needs `model`",
        cost="one page",
    ),
    Preset(
        name="ollama",
        title="Ollama",
        via=Via.ENGINE,
        parser=_plain(residency.ollama),
        paths=("/api/ps",),
        every=10,
        reads="which models are resident; not how many requests run",
        cost="one list; nothing is loaded by it",
    ),
    Preset(
        name="lmstudio",
        title="LM Studio",
        via=Via.ENGINE,
        parser=_plain(residency.lmstudio),
        paths=("/api/v0/models",),
        every=10,
        reads="which models are loaded; with `path: /api/v1/models` by their instances",
        cost="one list",
    ),
    Preset(
        name="openrouter",
        title="OpenRouter, key",
        via=Via.HTTP,
        parser=_plain(openrouter.openrouter),
        polls=openrouter.key,
        observes=openrouter.live,
        url="https://openrouter.ai",
        paths=("/api/v1/key",),
        every=60,
        least=30,
        reads="what is left of the key's cap, free requests of the day; also live errors",
    ),
    Preset(
        name="openrouter-credits",
        title="OpenRouter, account",
        via=Via.HTTP,
        parser=_plain(openrouter.credits_of_account),
        url="https://openrouter.ai",
        paths=("/api/v1/credits",),
        every=120,
        least=60,
        reads="the account's balance; needs a management key, and is up to 60 s behind",
    ),
    Preset(
        name="deepseek",
        title="DeepSeek",
        via=Via.HTTP,
        parser=_plain(deepseek.deepseek),
        url="https://api.deepseek.com",
        paths=("/user/balance",),
        every=60,
        least=30,
        reads="the balance in each currency",
    ),
    Preset(
        name="openai",
        title="OpenAI API",
        via=Via.OBSERVER,
        parser=_plain(openai.openai),
        reads="x-ratelimit-*, and errors: out of money, deactivated, limited",
        cost="nothing",
        note="facts come with traffic only",
    ),
    Preset(
        name="anthropic",
        title="Anthropic API",
        via=Via.OBSERVER,
        parser=_plain(anthropic.anthropic),
        reads="anthropic-ratelimit-*, and errors: 529, credit too low, disabled",
        cost="nothing",
        note="facts come with traffic only",
    ),
    Preset(
        name="claude",
        title="Claude subscription, headers",
        via=Via.OBSERVER,
        parser=_plain(claude.claude),
        observes=claude.headers,
        reads="anthropic-ratelimit-unified-*",
        cost="nothing",
        note="the headers are not documented; facts come with traffic only",
    ),
    Preset(
        name="claude-statusline",
        title="Claude Code status line",
        via=Via.FILES,
        parser=_plain(claude.statusline),
        every=15,
        reads="the 5h and 7d windows, from the JSON that a status-line command saved",
        cost="nothing; no credential is touched",
    ),
    Preset(
        name="claude-usage",
        title="Claude usage endpoint",
        via=Via.HTTP,
        parser=_plain(claude.usage),
        url="https://api.anthropic.com",
        paths=("/api/oauth/usage",),
        headers={"anthropic-beta": "oauth-2025-04-20"},
        every=300,
        least=300,
        official=False,
        reads="every window, also by model; extra usage",
        note="the endpoint has a limit of its own; the token is never refreshed by us",
    ),
    Preset(
        name="codex",
        title="Codex, headers",
        via=Via.OBSERVER,
        parser=_plain(codex.codex),
        observes=codex.live,
        reads="x-codex-*, and the events codex.rate_limits and usage_limit_reached",
        cost="nothing",
        note="the headers are not documented; facts come with traffic only",
    ),
    Preset(
        name="codex-app-server",
        title="Codex app-server",
        via=Via.COMMAND,
        parser=_plain(codex.app_server),
        every=120,
        least=60,
        reads="account/rateLimits/read; the vendor's own program holds the token",
        cost="one request by the vendor's program",
    ),
    Preset(
        name="codex-rollout",
        title="Codex session files",
        via=Via.FILES,
        parser=_plain(codex.rollout),
        every=15,
        reads="the newest token_count lines; they carry no account, so give `since`",
        cost="nothing",
    ),
    Preset(
        name="codex-usage",
        title="Codex usage endpoint",
        via=Via.HTTP,
        parser=_plain(codex.usage),
        url="https://chatgpt.com",
        paths=("/backend-api/wham/usage",),
        every=300,
        least=300,
        official=False,
        reads="every window, additional limits, credits",
    ),
    Preset(
        name="copilot",
        title="GitHub Copilot, headers",
        via=Via.OBSERVER,
        parser=_plain(copilot.copilot),
        observes=copilot.live,
        reads="x-quota-snapshot-*, x-usage-ratelimit-*",
        cost="nothing",
        note="the headers are not documented; facts come with traffic only",
    ),
    Preset(
        name="copilot-user",
        title="GitHub Copilot, user endpoint",
        via=Via.HTTP,
        parser=_plain(copilot.user),
        url="https://api.github.com",
        paths=("/copilot_internal/user",),
        every=600,
        least=300,
        official=False,
        reads="what is left of the month, by kind of request",
    ),
    Preset(
        name="gemini",
        title="Gemini Code Assist",
        via=Via.OBSERVER,
        parser=_plain(gemini.gemini),
        official=False,
        reads="the buckets of retrieveUserQuota, which a gateway hands over",
        cost="nothing by itself; the call is a POST, which no collector makes",
    ),
    Preset(
        name="statuspage",
        title="A status page",
        via=Via.HTTP,
        parser=_plain(statuspage.statuspage),
        paths=("/api/v2/summary.json",),
        advisory=True,
        every=60,
        least=30,
        reads="the indicator and the components in trouble; advice, which blocks nothing",
    ),
)

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in _ALL}
ALIASES: Mapping[str, str] = {
    "llama.cpp": "llamacpp",
    "llama-cpp": "llamacpp",
    "llamacpp-metrics": "llamacpp",
    "llamacpp-slots": "llamacpp",
    "llamacpp-health": "llamacpp",
    "llamacpp-models": "llamacpp-router",
    "ollama-ps": "ollama",
    "lm-studio": "lmstudio",
    "openrouter-key": "openrouter",
    "openrouter-headers": "openrouter",
    "openai-headers": "openai",
    "anthropic-headers": "anthropic",
    "claude-headers": "claude",
    "claude-unified": "claude",
    "claude-code": "claude",
    "claude-subscription": "claude",
    "claude-oauth-usage": "claude-usage",
    "codex-headers": "codex",
    "codex-wham-usage": "codex-usage",
    "github-copilot": "copilot",
    "gemini-code-assist": "gemini",
    "status-page": "statuspage",
    "copilot-headers": "copilot",
    "deepseek-balance": "deepseek",
    "text-generation-inference": "tgi",
}


def find(name: str) -> Preset:
    """Return a preset by its name, in any spelling, or an alias. KeyError: its message names those that there are."""
    spelled = name.lower().replace("_", "-")
    preset = PRESETS.get(ALIASES.get(spelled, spelled))
    if preset is None:
        raise KeyError(f"no preset {name!r}; there are: {', '.join(PRESETS)}")
    return preset
