"""Why a decision came out as it did, in words: the rule that decided. The same words wherever somebody asks."""

from tidegate_server.core.decide import Decision
from tidegate_server.core.model import PinState, RefusalReason, Tier, Verdict
from tidegate_server.core.policy import Route

R = RefusalReason

BYPASSED_RULE = "An explicit model is an explicit choice: no policy is asked, and no pin is made."

REFUSED_RULES: dict[RefusalReason, str] = {
    R.CONTEXT_LENGTH_EXCEEDED: "A request must fit the route's byte budget; a compaction has an allowance above it.",
    R.COMPACTION_REQUIRES_PIN: "Only a bound worker can be compacted.",
    R.OPAQUE_STATE_REQUIRES_PIN: "A provider's opaque state binds nobody: it must come from a bound worker.",
    R.OPAQUE_STATE_MISMATCH: "Opaque state goes back to the provider that it came from, and to no other.",
    R.MODALITY_UNSUPPORTED: "Routes take text only.",
    R.EFFORT_UNSUPPORTED: "The reasoning effort must be one that the candidate supports.",
    R.CAPACITY_UNKNOWN: "Nobody is eligible, and of at least one candidate it is not known: without fresh facts the "
    "answer is no.",
    R.NO_ELIGIBLE_CANDIDATE: "Of every candidate it is known that it cannot take the work now.",
    R.PIN_MISSING: "The caller says that the worker has had turns before, and no pin of it is stored.",
    R.PIN_CORRUPT: "A damaged pin is never replaced: another choice might move the worker.",
    R.PIN_RETIRED: "A retired pin ends its worker.",
    R.PIN_POLICY_CHANGED: "A worker goes on only under the policy that it was bound under.",
    R.PIN_BINDING_CHANGED: "A worker goes on only while its provider is configured as it was.",
    R.PIN_PROVIDER_UNAVAILABLE: "A pinned worker never moves: its own provider cannot take it now.",
    R.PIN_PAID_PREREQUISITE_LIFTED: "A worker on a paid model goes on only while every subscription is blocked.",
    R.FLOW_REQUIRED: "The route takes only requests that belong to a flow.",
    R.FLOW_UNKNOWN: "A hop must come from a hop of its flow that is known.",
    R.FLOW_TIMEOUT: "A flow ends when its time is over.",
    R.FLOW_HOP_CLOSED: "Nothing may be called from a hop that has exited.",
    R.FLOW_DEPTH_EXCEEDED: "A chain of agents may only be so long.",
    R.FLOW_CYCLE_DETECTED: "An agent must not stand twice in one chain.",
    R.FLOW_FAN_OUT_EXCEEDED: "A flow may only make so many calls.",
    R.FLOW_TOKENS_EXHAUSTED: "A flow may only use so many tokens.",
    R.FLOW_GUARD_UNAVAILABLE: "When the flow guard cannot be asked, nothing is allowed.",
}


def rule_of(decision: Decision, route: Route | None) -> str:
    """The rule that decided, one or two plain sentences."""
    if decision.refusal is not None:
        return REFUSED_RULES[decision.refusal.reason]
    if decision.verdict is Verdict.BYPASSED or route is None:
        return BYPASSED_RULE
    if decision.pin_state is PinState.EXISTING:
        return "A pinned worker stays where it is bound, and its provider can take it now."
    assert decision.candidate is not None
    if decision.candidate.tier is not Tier.PAID:
        return "The first eligible candidate is bound; local ones come first, then subscriptions, then paid ones."
    if route.prefer_paid_flash:
        return "The route prefers its paid model to subscriptions, and the paid account has a fresh balance."
    return "Money may be spent: every subscription of the route has a confirmed blocker, and the balance is fresh."
