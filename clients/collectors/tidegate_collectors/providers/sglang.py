"""SGLang. Page: /metrics, which needs --enable-metrics; /health generates a token and is therefore never called.

Ranks of tensor, pipeline and expert parallelism run the same batch and repeat its numbers; data-parallel ranks are
engines of their own. The empty `priority` is the total of the others.
"""

from tidegate_collectors.providers.engines import Spec

SGLANG = Spec(
    running=("sglang:num_running_reqs",),
    waiting=("sglang:num_queue_reqs",),
    kv_usage=(
        ("sglang:token_usage",),
        ("sglang:full_token_usage",),
        ("sglang:swa_token_usage",),
        ("sglang:mamba_usage",),
    ),
    throughput="sglang:gen_throughput",
    counters=("sglang:generation_tokens_total", "sglang:prompt_tokens_total", "sglang:num_requests_total"),
    engine_labels=("dp_rank",),
    copies=("tp_rank", "pp_rank", "moe_ep_rank"),
    breakdown="priority",
    deep_queue=10,
    disabled={404: "the engine serves no metrics: start it with --enable-metrics"},
)
