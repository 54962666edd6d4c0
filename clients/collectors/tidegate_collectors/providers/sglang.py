"""SGLang. Page: /metrics, which needs --enable-metrics; /health generates a token and is therefore never called.

Ranks of tensor, pipeline and expert parallelism run the same batch and repeat its numbers; data-parallel ranks are
engines of their own. The empty `priority` is the total of the others. A node that only decodes, or only prefills, has
queues of its own names.
"""

from tidegate_collectors.providers.engines import Spec

SGLANG = Spec(
    running=("sglang:num_running_reqs",),
    waiting=("sglang:num_queue_reqs",),
    also_waiting=(
        "sglang:num_prefill_prealloc_queue_reqs",
        "sglang:num_decode_prealloc_queue_reqs",
        "sglang:num_decode_transfer_queue_reqs",
    ),
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
