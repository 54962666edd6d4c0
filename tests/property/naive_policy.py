"""The policy once more, written from the contract's sentences: slow, flat, and meant to be checked by eye.

It shares only the words with the server (`core.model`, `core.policy`), and none of its rules. `test_policy_properties`
holds the two against each other. Flows, I/O and the waiting itself are not in here; that the contract asks for a cold
wait before an answer is final is.

Where the contract's wording leaves room, the reading taken stands beside the rule, after the word "Reading".
"""

from collections.abc import Sequence
from typing import NamedTuple

from tidegate_server.core.model import (
    NEVER,
    Availability,
    AvailabilityState,
    Balance,
    Blocker,
    CandidateVerdict,
    CorruptPin,
    Fact,
    FactKey,
    Health,
    HealthState,
    Instant,
    Pin,
    PinState,
    Quota,
    RefusalReason,
    Request,
    StoredPin,
    Tier,
    Verdict,
)
from tidegate_server.core.policy import Candidate, Route

from tests.property.naive_facts import SHORT_KINDS, is_forgotten, is_fresh, is_over, is_stale

MIB = 1024 * 1024


class NaiveEvaluation(NamedTuple):
    """What the facts and the request say about one candidate."""

    candidate: str
    verdict: CandidateVerdict
    confirmed: bool


class Proof(NamedTuple):
    """One fact that confirms one blocker of one subscription."""

    candidate: str
    blocker: Blocker
    key: FactKey


class NaiveAnswer(NamedTuple):
    """The answer, as bare as it can be.

    `wait`: the contract asks for a cold wait before this answer is final, on the providers in `wait_for`. `evidence` is
    what authorizes a paid admission under the default policy, and empty for anything else.
    """

    verdict: Verdict
    candidate: str = ""
    pin_state: PinState = PinState.NONE
    reason: RefusalReason | None = None
    wait_for: frozenset[str] = frozenset()
    evaluations: tuple[NaiveEvaluation, ...] = ()
    evidence: frozenset[Proof] = frozenset()

    @property
    def wait(self) -> bool:
        """Whether a cold wait comes first."""
        return bool(self.wait_for)


# --- §4.3: a candidate ----------------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """The facts that count for one candidate, sorted by kind. "Facts of the account and of the model both count"."""

    health: list[Fact]
    quota: list[Fact]
    balance: list[Fact]
    blocked: list[Fact]
    """Availability rows of a kind, BLOCKED or of no known state, that neither were cleared nor yielded nor ended."""
    available: list[Fact]
    """AVAILABLE without `blocker`."""


def rows_of(candidate: Candidate, facts: Sequence[Fact], now: Instant) -> Rows:
    """Pick the candidate's facts, leaving out what §3.5–§3.7 say no longer counts."""
    mine = [
        fact
        for fact in facts
        if fact.key.provider == candidate.provider
        and fact.key.model in {"", candidate.model}
        and not is_forgotten(fact, now)
    ]
    quota = [
        fact
        for fact in mine
        # §3.5: "any other scoped window counts only when `requiredWindows` names it"
        if fact.key.kind == "quota"
        and (fact.key.scope == "" or (fact.key.part, fact.key.scope) in candidate.required_windows)
    ]
    balance = [fact for fact in mine if fact.key.kind == "balance"]
    rows = [fact for fact in mine if fact.key.kind == "availability"]
    available = [fact for fact in rows if fact.value == Availability(AvailabilityState.AVAILABLE)]
    blocked = []
    for row in rows:
        assert isinstance(row.value, Availability)
        kind = row.value.blocker
        if row.value.state is AvailabilityState.AVAILABLE or kind is Blocker.NONE:
            continue
        if is_over(row, now):  # §3.6: "past its until_time no longer counts"
            continue
        if kind in SHORT_KINDS and row.ends_at == NEVER and is_stale(row, now):  # §3.6: "nor does … without one …"
            continue
        if kind is Blocker.QUOTA_EXHAUSTED and exhaustion_yields(candidate, row, quota, balance):
            continue
        blocked.append(row)
    return Rows([fact for fact in mine if fact.key.kind == "health"], quota, balance, blocked, available)


def exhaustion_yields(candidate: Candidate, row: Fact, quota: list[Fact], balance: list[Fact]) -> bool:
    """§3.6: "yields once every window that §4.3 needs (paid: every balance scope) has a newer fact above 0".

    Reading: fresh or not, and newer is captured later; the tie rule is for facts of one key. A window seen for the
    account and for the model is two windows, and both need the newer fact. A balance with `available = false` shows
    no room. A local candidate needs no window; those seen of it count like a subscription's.
    """
    if candidate.tier is Tier.PAID:
        scopes = balance_scopes(balance)
        return bool(scopes) and all(
            any(balance_says_yes(fact) and fact.captured > row.captured for fact in scope) for scope in scopes
        )
    needed = needed_windows(candidate, quota)
    return all_seen(candidate, quota) and all(
        kind_of_window(fact, reserve=0) is Blocker.NONE and fact.captured > row.captured for fact in needed
    )


def needed_windows(candidate: Candidate, quota: list[Fact]) -> list[Fact]:
    """§4.3: "each of `requiredWindows`, or, if none is named, each window seen". The facts seen of those."""
    if not candidate.required_windows:
        return quota
    return [fact for fact in quota if (fact.key.part, fact.key.scope) in candidate.required_windows]


def all_seen(candidate: Candidate, quota: list[Fact]) -> bool:
    """Whether every window that is named was seen, for the account or for the model; if none is named: any window."""
    seen = {(fact.key.part, fact.key.scope) for fact in quota}
    return set(candidate.required_windows) <= seen if candidate.required_windows else bool(seen)


def balance_scopes(balance: list[Fact]) -> list[list[Fact]]:
    """The rows of each balance scope. Reading: the account's and the model's scopes of one name are two scopes."""
    names = sorted({(fact.key.model, fact.key.scope) for fact in balance})
    return [[fact for fact in balance if (fact.key.model, fact.key.scope) == name] for name in names]


def balance_says_yes(fact: Fact) -> bool:
    """An amount above zero or unlimited, and no `available = false` beside it."""
    assert isinstance(fact.value, Balance)
    return (fact.value.unlimited or fact.value.amount > 0) and fact.value.available is not False


def kind_of_window(fact: Fact, reserve: float) -> Blocker:
    """§4.3: "A window at 0 is QUOTA_EXHAUSTED, above 0 up to the reserve QUOTA_BELOW_RESERVE"; NONE: there is room."""
    assert isinstance(fact.value, Quota)
    if fact.value.unlimited:
        return Blocker.NONE
    if fact.value.remaining_percent == 0:
        return Blocker.QUOTA_EXHAUSTED
    return Blocker.QUOTA_BELOW_RESERVE if fact.value.remaining_percent <= reserve else Blocker.NONE


def proofs(route: Route, candidate: Candidate, facts: Sequence[Fact], now: Instant) -> list[Proof]:
    """§4.3, Confirmed: each "fresh fact of a kind in the route's `paidOn`". Suitability does not enter."""
    if candidate.tier is not Tier.SUBSCRIPTION:
        return []
    rows = rows_of(candidate, facts, now)
    found = []
    for fact in rows.blocked:
        assert isinstance(fact.value, Availability)
        if is_fresh(fact, now) and fact.value.state is AvailabilityState.BLOCKED:
            found.append(Proof(candidate.name, fact.value.blocker, fact.key))
    found += [
        Proof(candidate.name, kind_of_window(fact, route.min_remaining_percent), fact.key)
        for fact in rows.quota
        if is_fresh(fact, now)
    ]
    return [proof for proof in found if proof.blocker in route.paid_on]


def says_no(route: Route, candidate: Candidate, rows: Rows, now: Instant) -> bool:
    """§4.3, BLOCKED: "something fresh says no … One is enough, whatever the rest says"."""
    for fact in rows.blocked:
        assert isinstance(fact.value, Availability)
        if (
            is_fresh(fact, now)
            and fact.value.state is AvailabilityState.BLOCKED
            and fact.value.blocker not in SHORT_KINDS
        ):
            return True
    if candidate.tier is Tier.LOCAL:
        for fact in rows.health:
            assert isinstance(fact.value, Health)
            # Reading: an unknown state says neither yes nor no.
            if is_fresh(fact, now) and fact.value.state not in {HealthState.HEALTHY, HealthState.UNKNOWN}:
                return True
    if candidate.tier is Tier.SUBSCRIPTION:
        reserve = route.min_remaining_percent
        return any(is_fresh(fact, now) and kind_of_window(fact, reserve) is not Blocker.NONE for fact in rows.quota)
    if candidate.tier is Tier.PAID:
        # Reading: `available = false` speaks for its own row; a scope is blocked when each of its currencies says no.
        return any(
            all(is_fresh(fact, now) and not balance_says_yes(fact) for fact in scope)
            for scope in balance_scopes(rows.balance)
        )
    return False


def missing(candidate: Candidate, rows: Rows, now: Instant) -> CandidateVerdict | None:
    """§4.3, UNKNOWN / STALE: a needed fact that was never seen, is past its reset, or past its limit; or rule §3.6.

    Reading: UNKNOWN goes before STALE when both occur.
    """
    faults: list[CandidateVerdict] = []
    for fact in rows.blocked:
        assert isinstance(fact.value, Availability)
        if fact.value.state is AvailabilityState.UNKNOWN:
            faults.append(CandidateVerdict.UNKNOWN)  # §3.5: "makes its key unknown", however old it is by now
        elif is_stale(fact, now):
            faults.append(CandidateVerdict.STALE)  # §3.6: "Any other row past its limit and not cleared"
    if candidate.tier is Tier.LOCAL:
        faults += _missing_health(rows, now)
    elif candidate.tier is Tier.SUBSCRIPTION:
        if not all_seen(candidate, rows.quota):
            faults.append(CandidateVerdict.UNKNOWN)
        faults += [_fault(fact, now) for fact in needed_windows(candidate, rows.quota) if not is_fresh(fact, now)]
    else:
        faults += _missing_balance(rows, now)
    if CandidateVerdict.UNKNOWN in faults:
        return CandidateVerdict.UNKNOWN
    return CandidateVerdict.STALE if faults else None


def _fault(fact: Fact, now: Instant) -> CandidateVerdict:
    """Why a fact that is not fresh does not count."""
    return CandidateVerdict.STALE if is_stale(fact, now) else CandidateVerdict.UNKNOWN


def _missing_health(rows: Rows, now: Instant) -> list[CandidateVerdict]:
    """A fresh HEALTHY fact, of the account or of the model. A fresh one of no known state is as good as none."""
    for fact in rows.health:
        assert isinstance(fact.value, Health)
        if is_fresh(fact, now) and fact.value.state is HealthState.HEALTHY:
            return []
    return [CandidateVerdict.STALE if any(is_stale(f, now) for f in rows.health) else CandidateVerdict.UNKNOWN]


def _missing_balance(rows: Rows, now: Instant) -> list[CandidateVerdict]:
    """A yes in every balance scope seen (at least one), and availability."""
    if not rows.balance:
        return [CandidateVerdict.UNKNOWN]
    faults = []
    for scope in balance_scopes(rows.balance):
        if not any(is_fresh(fact, now) and balance_says_yes(fact) for fact in scope):
            faults += [_fault(fact, now) for fact in scope if not is_fresh(fact, now)]
    words = [fact for fact in rows.balance if isinstance(fact.value, Balance) and fact.value.available is True]
    words += rows.available
    if not any(is_fresh(fact, now) for fact in words):
        faults.append(
            CandidateVerdict.STALE if any(is_stale(fact, now) for fact in words) else CandidateVerdict.UNKNOWN
        )
    return faults


def is_busy(candidate: Candidate, rows: Rows, now: Instant, pinned: bool) -> bool:
    """§4.3, BUSY; §4.5: "saturation steers new workers only"."""
    for fact in rows.blocked:
        assert isinstance(fact.value, Availability)
        if is_fresh(fact, now) and fact.value.blocker in SHORT_KINDS:
            return True
    limits = candidate.saturation
    if limits is None or pinned:
        return False
    for fact in rows.health:
        assert isinstance(fact.value, Health)
        if not is_fresh(fact, now):
            continue
        if limits.max_waiting is not None and (fact.value.waiting or 0) > limits.max_waiting:
            return True
        if limits.max_kv_usage is not None and (fact.value.kv_usage or 0) > limits.max_kv_usage:
            return True
    return False


def by_facts(
    route: Route, candidate: Candidate, facts: Sequence[Fact], now: Instant, pinned: bool = False
) -> CandidateVerdict:
    """The rows of §4.3 that rest on facts: BLOCKED, UNKNOWN / STALE, BUSY, ELIGIBLE; the first that applies."""
    rows = rows_of(candidate, facts, now)
    if says_no(route, candidate, rows, now):
        return CandidateVerdict.BLOCKED
    lacking = missing(candidate, rows, now)
    if lacking is not None:
        return lacking
    return CandidateVerdict.BUSY if is_busy(candidate, rows, now, pinned) else CandidateVerdict.ELIGIBLE


def effort_supported(candidate: Candidate, request: Request) -> bool:
    """§4.3: "the mapped one, else the request's"; a request that names none asks for nothing."""
    effort = candidate.mapped_effort or request.reasoning_effort
    return not effort or effort in candidate.reasoning_efforts


def paid_authorized(route: Route, facts: Sequence[Fact], now: Instant) -> bool:
    """§4.4. Reading: with no subscription there is nothing that could be confirmed."""
    if not route.allow_paid:
        return False
    if route.prefer_paid_flash:
        return True
    subscriptions = [c for c in route.candidates if c.tier is Tier.SUBSCRIPTION]
    return bool(subscriptions) and all(proofs(route, c, facts, now) for c in subscriptions)


def evaluate(
    route: Route, candidate: Candidate, request: Request, facts: Sequence[Fact], now: Instant
) -> NaiveEvaluation:
    """The whole table of §4.3 for a worker without a pin."""
    if not effort_supported(candidate, request):
        verdict = CandidateVerdict.UNSUITABLE
    elif candidate.tier is Tier.PAID and not paid_authorized(route, facts, now):
        verdict = CandidateVerdict.NOT_AUTHORIZED
    else:
        verdict = by_facts(route, candidate, facts, now)
    return NaiveEvaluation(candidate.name, verdict, bool(proofs(route, candidate, facts, now)))


# --- §4.1, §4.5: the answer -----------------------------------------------------------------------------------------

UNSURE = frozenset({CandidateVerdict.UNKNOWN, CandidateVerdict.STALE})


def answer(route: Route, request: Request, pin: StoredPin | None, facts: Sequence[Fact], now: Instant) -> NaiveAnswer:
    """§4.1, checks 3, 4, 6 to 9. `facts`: at most one per key, as `keep` leaves them."""
    if request.compaction and pin is None:
        return _refused(RefusalReason.COMPACTION_REQUIRES_PIN)
    budget = route.max_context_bytes
    if request.compaction:
        budget = max(budget, min(4 * budget, 4 * MIB))
    if request.request_bytes > budget:
        return _refused(RefusalReason.CONTEXT_LENGTH_EXCEEDED)
    if any(modality != "text" for modality in request.input_modalities):
        return _refused(RefusalReason.MODALITY_UNSUPPORTED)
    if pin is not None:
        return answer_pinned(route, request, pin, facts, now)
    if request.require_pin:
        return _refused(RefusalReason.PIN_MISSING)
    if request.provider_state:
        return _refused(RefusalReason.OPAQUE_STATE_REQUIRES_PIN)
    return answer_new(route, request, facts, now)


def in_order(route: Route) -> list[Candidate]:
    """§4.2: by tier, in the list's order within a tier; with `preferPaidFlash`: local, paid, subscription."""
    tiers = [Tier.LOCAL, Tier.SUBSCRIPTION, Tier.PAID]
    if route.prefer_paid_flash:
        tiers = [Tier.LOCAL, Tier.PAID, Tier.SUBSCRIPTION]
    return [candidate for tier in tiers for candidate in route.candidates if candidate.tier is tier]


def answer_new(route: Route, request: Request, facts: Sequence[Fact], now: Instant) -> NaiveAnswer:
    """§4.1, steps 7 to 9."""
    ordered = in_order(route)
    evaluations = tuple(evaluate(route, candidate, request, facts, now) for candidate in ordered)
    unsure: set[str] = set()
    for candidate, evaluation in zip(ordered, evaluations, strict=True):
        if evaluation.verdict is CandidateVerdict.ELIGIBLE:
            paid = candidate.tier is Tier.PAID
            return NaiveAnswer(
                Verdict.ADMITTED,
                candidate.name,
                PinState.NEW,
                wait_for=frozenset(unsure if paid else ()),  # step 7
                evaluations=evaluations,
                evidence=_evidence(route, facts, now) if paid else frozenset(),
            )
        if evaluation.verdict in UNSURE:
            unsure.add(candidate.provider)
    verdicts = {evaluation.verdict for evaluation in evaluations}
    if verdicts == {CandidateVerdict.UNSUITABLE}:
        reason = RefusalReason.EFFORT_UNSUPPORTED
    elif verdicts & UNSURE:
        reason = RefusalReason.CAPACITY_UNKNOWN
    else:
        reason = RefusalReason.NO_ELIGIBLE_CANDIDATE
    return _refused(reason, frozenset(unsure), evaluations)


def answer_pinned(route: Route, request: Request, pin: StoredPin, facts: Sequence[Fact], now: Instant) -> NaiveAnswer:
    """§4.5, in its order. "Never another provider, never a new pin"."""
    if isinstance(pin, CorruptPin):
        return _refused(RefusalReason.PIN_CORRUPT)
    if pin.retired:
        return _refused(RefusalReason.PIN_RETIRED)
    if pin.policy_fingerprint != route.fingerprint:
        return _refused(RefusalReason.PIN_POLICY_CHANGED)
    bound = [c for c in route.candidates if c.name == pin.candidate]
    if not bound or bound[0].binding_fingerprint != pin.binding_fingerprint:
        return _refused(RefusalReason.PIN_BINDING_CHANGED)
    candidate = bound[0]
    if request.provider_state not in {"", "unknown", pin.provider}:
        return _refused(RefusalReason.OPAQUE_STATE_MISMATCH)
    if not effort_supported(candidate, request):
        return _refused(RefusalReason.EFFORT_UNSUPPORTED)
    wait_for: set[str] = set()
    if pin.tier is Tier.PAID and not route.prefer_paid_flash:
        subscriptions = [c for c in route.candidates if c.tier is Tier.SUBSCRIPTION]
        verdicts = {c: by_facts(route, c, facts, now) for c in subscriptions}
        if set(verdicts.values()) & {CandidateVerdict.ELIGIBLE, CandidateVerdict.BUSY}:
            return _refused(RefusalReason.PIN_PAID_PREREQUISITE_LIFTED)
        wait_for |= {c.provider for c, verdict in verdicts.items() if verdict in UNSURE}
        if not all(proofs(route, c, facts, now) for c in subscriptions):
            return _refused(RefusalReason.PIN_PROVIDER_UNAVAILABLE, frozenset(wait_for))
    own = by_facts(route, candidate, facts, now, pinned=True)
    if own in UNSURE:
        wait_for.add(candidate.provider)
    if own is not CandidateVerdict.ELIGIBLE:
        return _refused(RefusalReason.PIN_PROVIDER_UNAVAILABLE, frozenset(wait_for))
    evidence = _evidence(route, facts, now) if pin.tier is Tier.PAID else frozenset()
    return NaiveAnswer(Verdict.ADMITTED, candidate.name, PinState.EXISTING, evidence=evidence)


def _evidence(route: Route, facts: Sequence[Fact], now: Instant) -> frozenset[Proof]:
    """§4.4: what authorizes under the default policy; `preferPaidFlash` needs no subscription's word."""
    if route.prefer_paid_flash:
        return frozenset()
    return frozenset(proof for c in route.candidates for proof in proofs(route, c, facts, now))


def _refused(
    reason: RefusalReason,
    wait_for: frozenset[str] = frozenset(),
    evaluations: tuple[NaiveEvaluation, ...] = (),
) -> NaiveAnswer:
    return NaiveAnswer(Verdict.REFUSED, reason=reason, wait_for=wait_for, evaluations=evaluations)


def pin_of(route: Route, candidate: Candidate) -> Pin:
    """The pin that an admission of `candidate` stores (§5)."""
    return Pin(
        pin_id=b"\x01" * 16,
        namespace="default",
        route=route.name,
        candidate=candidate.name,
        provider=candidate.provider,
        model=candidate.model,
        tier=candidate.tier,
        credential_source=candidate.credential_source,
        policy_fingerprint=route.fingerprint,
        binding_fingerprint=candidate.binding_fingerprint,
        create_time=0,
    )
