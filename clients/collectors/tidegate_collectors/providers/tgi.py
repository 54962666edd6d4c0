"""Text Generation Inference. Page: /metrics; /health is 503 when the shard behind it is dead.

The page names no model and no fill level: `tgi_batch_current_max_tokens` has no maximum beside it.
"""

from tidegate_collectors.account import Account
from tidegate_collectors.facts import Kind, Reading, Source
from tidegate_collectors.payload import Response
from tidegate_collectors.payload import text as text_of
from tidegate_collectors.providers.engines import EngineParser, Spec

TGI = Spec(
    running=("tgi_batch_current_size",),
    waiting=("tgi_queue_size",),
    counters=("tgi_batch_inference_count", "tgi_request_generated_tokens_sum", "tgi_request_count"),
    engine_labels=(),
)


class TgiParser(EngineParser):
    """Reads the metrics page, and the one live answer by which TGI says that it is full."""

    def __call__(self, response: Response, source: Source) -> Reading:
        """Read an answer of /metrics, of /health, or of an inference call."""
        if response.status == 429 and text_of(response.any_tree.get("error_type")) == "overloaded":
            account = Account(response, source)
            account.block(Kind.OVERLOADED, account.backoff(), model=source.model)
            return account.reading()
        return super().__call__(response, source)
