"""vLLM, and NVIDIA NIM, which is vLLM without the prefix (1.x) or behind a proxy (2.x).

Page: /metrics. `gpu_cache_usage_perc` was the name of the KV gauge until 0.9; `cpu_cache_usage_perc` is something else.
/health proves the API process only: 503, in older builds 500, says that the engine behind it is dead.
"""

from tidegate_collectors.providers.engines import Spec


def _names(*metrics: str, prefixes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(prefix + metric for metric in metrics for prefix in prefixes)


def _spec(*prefixes: str) -> Spec:
    return Spec(
        running=_names("num_requests_running", prefixes=prefixes),
        waiting=_names("num_requests_waiting", prefixes=prefixes),
        kv_usage=(_names("kv_cache_usage_perc", "gpu_cache_usage_perc", prefixes=prefixes),),
        waiting_by_reason="vllm:num_requests_waiting_by_reason",
        sleep_state="vllm:engine_sleep_state",
        counters=_names(
            "generation_tokens_total", "prompt_tokens_total", "iteration_tokens_total_count", prefixes=prefixes
        ),
    )


VLLM = _spec("vllm:")
NIM = _spec("vllm:", "")
