"""The form of a request: what is malformed is rejected before any policy is asked (§4.1 step 2 of the contract)."""

import unicodedata
from collections.abc import Iterator

MAX_ID_BYTES = 256
"""§4.1: the longest worker_id; the other ids of the API keep to the same limit."""

MAX_LIST = 64
"""More input modalities or providers than this in one request are a mistake."""


def id_fault(value: str, *, required: bool = True) -> str:
    """What is wrong with an id; "" when nothing is. Ids are compared byte for byte: no trimming, no normalising."""
    if not value:
        return "is missing" if required else ""
    if value.isascii() and value.isprintable() and not value.isspace() and len(value) <= MAX_ID_BYTES:
        return ""  # nearly every id; the rest asks for each character's category, 3 µs for a UUID
    if not value.strip():
        return "is blank"
    if len(value.encode()) > MAX_ID_BYTES:
        return f"is over {MAX_ID_BYTES} bytes"
    if any(unicodedata.category(character) == "Cc" for character in value):
        return "has control characters"
    return ""


def request_faults(
    worker_id: str, request_bytes: int | None, tenant: str, modalities: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Every fault of an admission: pairs of the field and what is wrong with it."""
    if fault := id_fault(worker_id):
        yield "worker_id", fault
    if fault := id_fault(tenant, required=False):
        yield "tenant", fault
    if request_bytes is None:
        yield "request_bytes", "is missing; a route needs the exact size of the serialized request"
    elif request_bytes < 0:
        yield "request_bytes", "is negative"
    if len(modalities) > MAX_LIST:
        yield "input_modalities", f"has more than {MAX_LIST} items"
