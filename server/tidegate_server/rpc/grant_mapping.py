"""A granted hop on the wire: in the answer to an EnterHop, and in that to an Admit."""

from tidegate.v1 import flow_pb2 as wire

from tidegate_server.core.flow.model import Granted, Remaining
from tidegate_server.rpc.fact_mapping import duration


def grant_message(grant: Granted) -> wire.HopGrant:
    """A hop that was entered; also `AdmitResponse.hop`."""
    return wire.HopGrant(
        flow_id=grant.key.trace_id,
        hop_id=grant.hop.hop_id,
        depth=grant.hop.depth,
        chain=grant.hop.chain,
        traceparent=grant.traceparent,
        tracestate=grant.tracestate,
        remaining=remaining_message(grant.hop.remaining),
    )


def remaining_message(left: Remaining) -> wire.FlowRemaining:
    """What is left."""
    return wire.FlowRemaining(depth=left.depth, fan_out=left.fan_out, tokens=left.tokens, time=duration(left.time))
