"""Which role may call what (§13 of the contract). A method that is not in the table answers to nobody."""

from typing import NamedTuple

GATEWAY, COLLECTOR, OPERATOR, VIEWER = "gateway", "collector", "operator", "viewer"
ROLES = frozenset({GATEWAY, COLLECTOR, OPERATOR, VIEWER})


class Access(NamedTuple):
    """The roles that may call a method, and whether it needs an identity even from this machine."""

    roles: tuple[str, ...]
    identity_always: bool = False


_GATEWAYS = Access((GATEWAY,))
_READERS = Access((GATEWAY, OPERATOR, VIEWER))
_ANYBODY = Access((GATEWAY, COLLECTOR, OPERATOR, VIEWER))
_COLLECTORS = Access((COLLECTOR,), identity_always=True)
_OPERATORS = Access((OPERATOR,), identity_always=True)
_REGISTRARS = Access((GATEWAY, OPERATOR), identity_always=True)

OPEN_SERVICES = ("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection")
"""Never authenticated: a probe has no identity, and the protocol is public."""

ACCESS: dict[str, Access] = {
    f"/tidegate.v1.{method}": access
    for method, access in {
        "AdmissionService/Admit": _GATEWAYS,
        "AdmissionService/AdmitBatch": _GATEWAYS,
        "AdmissionService/Pin": _GATEWAYS,
        "AdmissionService/Capacity": _ANYBODY,
        "AdmissionService/Catalog": _ANYBODY,
        "AdmissionService/CapacityFeed": _COLLECTORS,
        "AdmissionService/ReportCapacity": _COLLECTORS,
        "FlowService/EnterHop": _GATEWAYS,
        "FlowService/ExitHop": _GATEWAYS,
        "FlowService/RecordTokens": _GATEWAYS,
        "FlowService/GetFlow": _READERS,
        "FlowService/ListFlows": _READERS,
        "FlowService/WatchFlows": _READERS,
        "SelectionService/RegisterAgent": _REGISTRARS,
        "SelectionService/DeregisterAgent": _REGISTRARS,
        "SelectionService/ListAgents": _READERS,
        "SelectionService/AppendTurn": _GATEWAYS,
        "SelectionService/SelectAgent": _GATEWAYS,
        "SelectionService/AssignStep": _GATEWAYS,
        "SelectionService/Dispatch": _GATEWAYS,
        "SelectionService/GetStats": _READERS,
        "SelectionService/ListDecisions": _READERS,
        "OperatorService/ListPins": _OPERATORS,
        "OperatorService/RetirePins": _OPERATORS,
        "OperatorService/VerifyPins": _OPERATORS,
        "OperatorService/ClearBlockers": _OPERATORS,
        "OperatorService/GetStatus": _OPERATORS,
    }.items()
} | {
    "/envoy.service.ext_proc.v3.ExternalProcessor/Process": _GATEWAYS,
    "/envoy.service.auth.v3.Authorization/Check": _GATEWAYS,
}


def is_open(method: str) -> bool:
    """Whether a method needs no access check."""
    return method.startswith(tuple(f"/{service}/" for service in OPEN_SERVICES))
