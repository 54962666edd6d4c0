"""The headers that a gateway puts on its response and on the upstream request (§4.6 of the contract)."""

from tidegate_server.core.policy import Candidate, Route

ROUTE = "x-gateway-managed-route"
CANDIDATE = "x-gateway-managed-candidate"
UPSTREAM = "x-gateway-upstream"
UPSTREAM_MODEL = "x-gateway-upstream-model"
EFFORT = "x-gateway-managed-reasoning-effort"
SESSION = "x-session-id"


def gateway_headers(candidate: Candidate, worker_id: str, route: Route | None) -> dict[str, str]:
    """The headers of an admission; `route` is None for an explicit model, which no policy managed.

    The effort's header is there only when a map entry was applied; the session's only when the provider asks for
    session affinity and the caller named a worker.
    """
    headers = {UPSTREAM: candidate.provider, UPSTREAM_MODEL: candidate.model}
    if route is not None:
        headers[ROUTE] = route.name
        headers[CANDIDATE] = candidate.name
        if candidate.mapped_effort:
            headers[EFFORT] = candidate.mapped_effort
    if candidate.session_affinity and worker_id:
        headers[SESSION] = worker_id
    return headers
