"""The example's configuration with other filters."""

from typing import Any

from tests.gateways.envoy_proxy.support import Json, example

TYPES = "type.googleapis.com/envoy.extensions.filters.http"


def manager(document: Any) -> Json:
    """The connection manager of the example's listener."""
    found: Json = document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def processing(document: Any) -> Json:
    """The settings of its filter for external processing."""
    found: Json = manager(document)["http_filters"][0]["typed_config"]
    return found


def impatient(seconds: float = 0.4) -> Any:
    """The example with less patience for a decision."""
    document = example()
    processing(document)["message_timeout"] = f"{seconds}s"
    return document


def with_authorization(seconds: float | None = None) -> Any:
    """The example with external authorization in the place of external processing."""
    document, authz = example(), example("ext-authz-filter.yaml")
    if seconds is not None:
        authz["typed_config"]["grpc_service"]["timeout"] = f"{seconds}s"
    manager(document)["http_filters"][0] = authz
    routes = manager(document)["route_config"]["virtual_hosts"][0]["routes"]
    for route in routes:
        if "typed_per_filter_config" in route:
            route["typed_per_filter_config"] = {
                "envoy.filters.http.ext_authz": {"@type": f"{TYPES}.ext_authz.v3.ExtAuthzPerRoute", "disabled": True}
            }
    return document


def with_authenticated(*names: str, response_headers: bool = False) -> Any:
    """The example behind a filter that says who calls, as jwt_authn would: here `x-test-NAME` is believed.

    `response_headers`: Tidegate sees the response's headers, too.
    """
    document = example()
    mutations = [
        {
            "append": {
                "header": {"key": f"x-gateway-{name}", "value": f"%REQ(x-test-{name})%"},
                "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            }
        }
        for name in names
    ]
    config = {
        "@type": f"{TYPES}.header_mutation.v3.HeaderMutation",
        "mutations": {"request_mutations": mutations},
    }
    if response_headers:
        mode = processing(document)["processing_mode"]
        mode |= {"response_header_mode": "SEND", "response_trailer_mode": "SEND"}
    filters = manager(document)["http_filters"]
    filters.insert(0, {"name": "envoy.filters.http.header_mutation", "typed_config": config})
    return document
