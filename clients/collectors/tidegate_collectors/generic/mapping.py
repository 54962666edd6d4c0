"""The mapping language: what a generic collector reads, and what facts it makes of it. Checked whole at load.

Unit, sense and time format are declared, field by field; nothing is guessed from a value. There is no arithmetic but a
declared scale, and there are no expressions.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

from tidegate_collectors.auth import Auth
from tidegate_collectors.durations import Seconds
from tidegate_collectors.facts import Kind
from tidegate_collectors.generic.paths import Path, parse
from tidegate_collectors.numeric import number
from tidegate_collectors.prometheus import MAX_SERIES

Unit = Literal["fraction", "percent", "count"]
Time = Literal["epoch_s", "epoch_ms", "rfc3339", "date_utc", "seconds_until", "go_duration", "period_utc"]
NullMeans = Literal["unknown", "unlimited", "not_started"]
LengthUnit = Literal["seconds", "minutes", "hours", "days"]

_SCALE = re.compile(r"10\^(-?\d{1,2})")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_TEMPLATE = re.compile(r"\$\{(\w+)\}")


def _scale(value: object) -> Decimal:
    match = _SCALE.fullmatch(value) if isinstance(value, str) else None
    if match:
        return Decimal(1).scaleb(int(match[1]))
    scale = number(value)
    if scale is None or scale <= 0:
        raise ValueError("a scale is a number above zero, or a power as in 10^-2")
    return scale


def _pattern(value: object) -> re.Pattern[str]:
    try:
        return re.compile(value) if isinstance(value, str) else _refuse("a pattern is text")
    except re.error as error:
        raise ValueError(f"not a pattern: {error}") from None


def _refuse(message: str) -> re.Pattern[str]:
    raise ValueError(message)


def _metric(name: str) -> str:
    if not _METRIC.fullmatch(name):
        raise ValueError(f"{name!r} is no metric's name")
    return name


def _listed(value: object) -> object:
    """Let one stand for a list of one."""
    return [value] if isinstance(value, str | dict) else value


def _short(value: object) -> object:
    """Let a text stand for a constant: `scope: key`."""
    return {"const": value} if isinstance(value, str) else value


JsonPath = Annotated[Path, PlainValidator(parse)]
Scale = Annotated[Decimal, PlainValidator(_scale)]
Pattern = Annotated[re.Pattern[str], PlainValidator(_pattern)]
Metrics = Annotated[tuple[Annotated[str, AfterValidator(_metric)], ...], BeforeValidator(_listed)]


class Part(BaseModel):
    """A part of a mapping: names that are not known are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True, populate_by_name=True)


class Place(Part):
    """Where a value is: a path, a header, the matched header itself (`from: header`), or a constant."""

    path: JsonPath | None = None
    header: str = ""
    matched: Literal["header"] | None = Field(default=None, alias="from")
    const: str | int | float | None = None
    omit_if: Annotated[str, Field(pattern=r"^!\w+$")] = ""
    """`!name`: left out when that group of the header's pattern is empty."""

    @model_validator(mode="after")
    def _one_place(self) -> "Place":
        given = [self.path is not None, bool(self.header), self.matched is not None, self.const is not None]
        if sum(given) != 1:
            raise ValueError("name exactly one of path, header, from and const")
        return self

    def groups(self) -> set[str]:
        """Return the groups of the header's pattern that it needs."""
        texts = [self.header, self.const if isinstance(self.const, str) else ""]
        return {name for text in texts for name in _TEMPLATE.findall(text)} | {self.omit_if.removeprefix("!")} - {""}


class Text(Place):
    """A text; `names` translates the provider's words."""

    names: dict[str, str] = Field(default_factory=dict)


class Length(Text):
    """A window: by its name, or by its length in the declared `unit`."""

    unit: LengthUnit | None = None


class Instant(Place):
    """A time in the declared format."""

    time: Time


class Amount(Place):
    """A number of money, times a declared `scale`."""

    type: Literal["decimal"] = "decimal"
    scale: Scale = Decimal(1)
    null_means: NullMeans = "unknown"


class Share(Place):
    """How much of a window is used or remains. A `count` needs the `limit` that it is a part of."""

    unit: Unit
    sense: Literal["used", "remaining"]
    limit: Place | None = None
    null_means: NullMeans = "unknown"

    @model_validator(mode="after")
    def _a_count_has_a_limit(self) -> "Share":
        if (self.unit == "count") != (self.limit is not None):
            raise ValueError("`limit` goes with `unit: count`, and only with it")
        return self


class Condition(Part):
    """Something that holds or does not: a value and a comparison, or several joined. A bare `path` asks for true."""

    path: JsonPath | None = None
    header: str = ""
    eq: Any = None
    ne: Any = None
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    exists: bool | None = None
    all: tuple["Condition", ...] = ()
    any: tuple["Condition", ...] = ()

    @model_validator(mode="after")
    def _one_form(self) -> "Condition":
        if sum([self.path is not None, bool(self.header), bool(self.all), bool(self.any)]) != 1:
            raise ValueError("name exactly one of path, header, all and any")
        if len(self.comparisons) > 1 or ((self.all or self.any) and self.comparisons):
            raise ValueError("one comparison, of one value")
        return self

    @property
    def comparisons(self) -> set[str]:
        """The comparisons that are given."""
        return self.model_fields_set & {"eq", "ne", "gt", "ge", "lt", "le", "exists"}


ShortText = Annotated[Text, BeforeValidator(_short)]
Instants = Annotated[tuple[Instant, ...], BeforeValidator(_listed)]


class Repeated(Part):
    """A fact for each element of lists, for each matching header, or one."""

    each: Annotated[tuple[JsonPath, ...], BeforeValidator(_listed)] = ()
    each_header: Pattern | None = None
    when: Condition | None = None
    model: ShortText | None = None
    ttl: Seconds | None = None

    @model_validator(mode="after")
    def _groups_exist(self) -> "Repeated":
        if self.each and self.each_header:
            raise ValueError("either each or each_header")
        known = set(self.each_header.groupindex) if self.each_header else set()
        for name in type(self).model_fields:
            for place in _places(getattr(self, name)):
                for group in place.groups() - known:
                    raise ValueError(f"{name}: the pattern of each_header has no group {group!r}")
                if place.matched and not self.each_header:
                    raise ValueError(f"{name}: `from: header` needs each_header")
        return self


class QuotaRule(Repeated):
    """A window of a quota."""

    window: Annotated[Length, BeforeValidator(_short)]
    value: Share
    scope: ShortText | None = None
    resets_at: Instants = ()
    unlimited: Condition | None = None


class BalanceRule(Repeated):
    """A balance."""

    currency: ShortText
    amount: Amount
    scope: ShortText | None = None
    available: Condition | None = None
    resets_at: Instants = ()


class BlockerRule(Repeated):
    """A blocker, while `when` holds. `until`: the exhausted windows' reset, Retry-After, or a time of the answer."""

    kind: Kind
    until: Literal["max_exhausted_reset", "retry_after"] | Instants = ()
    reason: ShortText | None = None


class Metric(Part):
    """A number of a Prometheus page: the first alias that is there, labels that match, a declared reduction."""

    metric: Metrics
    match: dict[str, str] = Field(default_factory=dict)
    """Label to its exact value, or to `/pattern/` for the whole value."""
    max_over: tuple[str, ...] = ()
    min_over: tuple[str, ...] = ()
    sum_over: tuple[str, ...] = ()
    """Labels that are folded away: by the largest or smallest value first, then by adding up."""
    require_one: bool = True
    unit: Unit = "count"
    optional: bool = False
    """Said for its reader: a metric that is missing is unknown either way."""

    @model_validator(mode="after")
    def _one_meaning_a_label(self) -> "Metric":
        labels = [*self.max_over, *self.min_over, *self.sum_over]
        if len(set(labels)) != len(labels):
            raise ValueError("a label is folded away once")
        for want in self.match.values():
            if len(want) > 1 and want.startswith("/") and want.endswith("/"):
                _pattern(want[1:-1])
        return self


class Unhealthy(Metric):
    """A comparison of a metric that shows an engine to be unhealthy. `reason` sleeping… or loading is that state."""

    eq: float | None = None
    gt: float | None = None
    lt: float | None = None
    reason: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _one_comparison(self) -> "Unhealthy":
        if sum(bound is not None for bound in (self.eq, self.gt, self.lt)) != 1:
            raise ValueError("name exactly one of eq, gt and lt")
        return self


class By(Part):
    """The label that names the model, and the model where a page has no such label."""

    label: str
    default: str = ""


class ProgressRule(Part):
    """Counters that must move while there is work."""

    counter: Metrics
    work: Literal["running > 0"] = Field(default="running > 0", alias="while")
    stall: Seconds = 30.0


class HealthRule(Part):
    """The health of a local engine, from a Prometheus page."""

    by: By | None = None
    running: Metric | None = None
    waiting: Metric | None = None
    kv_used: Metric | None = None
    waiting_capacity: Metric | None = None
    engines: str = ""
    """Label that tells several engines of one page apart; each is reported, too."""
    unhealthy_when: tuple[Unhealthy, ...] = ()
    progress: ProgressRule | None = None
    ttl: Seconds = 15.0


class Emit(Part):
    """One rule: exactly one of the four."""

    quota: QuotaRule | None = None
    balance: BalanceRule | None = None
    blocker: BlockerRule | None = None
    health: HealthRule | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "Emit":
        if sum(rule is not None for rule in (self.quota, self.balance, self.blocker, self.health)) != 1:
            raise ValueError("exactly one of quota, balance, blocker and health")
        return self


class StatusRule(Part):
    """What a status other than success means."""

    blocker: Kind | None = None
    reason: str = ""
    backoff: Literal["retry_after"] | None = None
    min: Seconds | None = None
    """With `backoff`: seconds to leave the source alone at the least."""

    @model_validator(mode="after")
    def _one_meaning(self) -> "StatusRule":
        if (self.blocker is None) == (self.backoff is None):
            raise ValueError("either blocker or backoff")
        return self


class Http(Part):
    """An address that answers with JSON."""

    url: str
    auth: Auth = Auth()
    every: Seconds = 60.0
    timeout: Seconds = 10.0


class Prometheus(Http):
    """An address that answers with a Prometheus page."""

    every: Seconds = 5.0
    timeout: Seconds = 5.0
    max_series: Annotated[int, Field(gt=0, le=100_000)] = MAX_SERIES


class Observe(Part):
    """Responses that the gateway hands over, of one host."""

    host: str


class Loading(Part):
    """The answer of an engine that is still loading its model."""

    status: int = 503
    body_contains: str = ""


class Liveness(Part):
    """An address that tells whether the engine behind a page lives."""

    url: str
    ok: tuple[int, ...] = (200,)
    loading: Loading | None = None


class Generic(Part):
    """The mapping of one collector."""

    http: Http | None = None
    prometheus: Prometheus | None = None
    observe: Observe | None = None
    liveness: Liveness | None = None
    require: Annotated[tuple[JsonPath, ...], BeforeValidator(_listed)] = ()
    """Paths that an answer must have, not null, to be one: else it is the collector's error, and no fact."""
    status: dict[int, StatusRule] = Field(default_factory=dict)
    emit: tuple[Emit, ...] = ()

    def generic_faults(self) -> Iterator[str]:
        """Yield what is wrong between settings that are right by themselves."""
        if sum(part is not None for part in (self.http, self.prometheus, self.observe)) != 1:
            yield "http: give exactly one of http, prometheus and observe"
        for index, rule in enumerate(self.emit):
            if (rule.health is not None) != (self.prometheus is not None):
                yield f"emit[{index}]: health rules read a prometheus page, and nothing else does"
        if self.liveness and not self.prometheus:
            yield "liveness: goes with prometheus"


def _places(value: object) -> list[Place]:
    if isinstance(value, Share):
        return [value, *([value.limit] if value.limit else [])]
    if isinstance(value, Place):
        return [value]
    return [each for each in value if isinstance(each, Place)] if isinstance(value, tuple) else []
