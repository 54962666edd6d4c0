"""Statuses with their details, and who may call what (§11 and §13 of the contract)."""

import asyncio
import stat
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from tidegate.v1 import (
    admission_pb2,
    error_reason_pb2,
    flow_pb2,
    operator_pb2,
    selection_pb2,
    types_pb2,
)
from tidegate_server import errors
from tidegate_server.rpc.access import ACCESS, ROLES
from tidegate_server.rpc.status import outcome_of, status_of
from tidegate_server.stores.sqlite_pins import SqlitePinStore
from tidegate_server.usecases.admit import Admit

from tests.integration.server.harness import CONFIG, Failure, bearer, failure, health, identity, quota, route, serving

SECRET = "postgresql://admin:hunter2@db.internal/pins /root/.ssh/id_rsa mail@example.org"
REASONS = {name.removeprefix("ERROR_REASON_") for name in error_reason_pb2.ErrorReason.keys()}  # noqa: SIM118

MADE: list[tuple[BaseException, grpc.StatusCode, str]] = [
    (
        errors.InvalidRequest([errors.FieldViolation("f", "is wrong")]),
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_REQUEST",
    ),
    *(
        (errors.NotFound(kind, "x"), grpc.StatusCode.NOT_FOUND, f"{kind.upper()}_NOT_FOUND")
        for kind in ("model", "provider", "pin", "flow", "hop", "agent", "decision")
    ),
    (errors.StoreUnavailable("pins"), grpc.StatusCode.UNAVAILABLE, "PIN_STORE_UNAVAILABLE"),
    (errors.StoreUnavailable("facts"), grpc.StatusCode.UNAVAILABLE, "FACT_STORE_UNAVAILABLE"),
    (errors.StoreUnavailable("flows"), grpc.StatusCode.UNAVAILABLE, "FLOW_STORE_UNAVAILABLE"),
    (errors.StoreUnavailable("agents"), grpc.StatusCode.UNAVAILABLE, "AGENT_STORE_UNAVAILABLE"),
    (errors.StoreUnavailable("decisions"), grpc.StatusCode.UNAVAILABLE, "DECISION_LOG_UNAVAILABLE"),
    (errors.ShuttingDown(), grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN"),
    (errors.FeedReplaced("c"), grpc.StatusCode.UNAVAILABLE, "FEED_REPLACED"),
    (errors.Overloaded(), grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
    (errors.Overloaded("feeds"), grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_FEEDS"),
    (errors.Overloaded("watchers"), grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_WATCHERS"),
    (errors.NotImplementedYet(), grpc.StatusCode.UNIMPLEMENTED, "NOT_IMPLEMENTED"),
    (errors.IdentityRequired(), grpc.StatusCode.UNAUTHENTICATED, "IDENTITY_REQUIRED"),
    (errors.CredentialInvalid(), grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_INVALID"),
    (errors.RoleNotAllowed(["operator"]), grpc.StatusCode.PERMISSION_DENIED, "ROLE_NOT_ALLOWED"),
    (errors.ProviderNotAllowed("p"), grpc.StatusCode.PERMISSION_DENIED, "PROVIDER_NOT_ALLOWED"),
    (errors.FlowStartNotAllowed(), grpc.StatusCode.PERMISSION_DENIED, "FLOW_START_NOT_ALLOWED"),
    (errors.AgentNotOwned("a"), grpc.StatusCode.PERMISSION_DENIED, "AGENT_NOT_OWNED"),
    (TimeoutError(SECRET), grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    (ValueError(SECRET), grpc.StatusCode.INTERNAL, "INTERNAL"),
    (errors.ProviderFailed(SECRET), grpc.StatusCode.INTERNAL, "INTERNAL"),
    (errors.UnsafeState(SECRET), grpc.StatusCode.INTERNAL, "INTERNAL"),
    (errors.ConfigurationError([SECRET]), grpc.StatusCode.INTERNAL, "INTERNAL"),
]


def unpacked(error: BaseException) -> Failure:
    """The status of an error, as a client reads it."""
    status = status_of(outcome_of(error))
    metadata = grpc.aio.Metadata(*(status.trailing_metadata or ()))
    return Failure(grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), metadata, status.details))


@pytest.mark.parametrize(("error", "code", "reason"), MADE, ids=lambda value: getattr(value, "name", str(value))[:40])
def test_every_error_has_one_status_and_a_reason_of_the_protocol(
    error: BaseException, code: grpc.StatusCode, reason: str
) -> None:
    told = unpacked(error)
    assert (told.code, told.reason, told.domain) == (code.name, reason, "tidegate")
    assert reason in REASONS
    assert (told.retry_delay is not None) == (told.code in ("UNAVAILABLE", "RESOURCE_EXHAUSTED"))
    assert bool(told.fields) == (told.code == "INVALID_ARGUMENT")
    assert "hunter2" not in f"{told.text} {told.metadata} {told.trailers}"


def test_every_error_of_the_product_is_in_the_list() -> None:
    products = {kind for kind in errors.TidegateError.__subclasses__() if kind.__module__ == errors.__name__}
    assert products == {type(error) for error, _, _ in MADE if isinstance(error, errors.TidegateError)}


def test_every_reason_of_the_protocol_is_used() -> None:
    elsewhere = {"UNSPECIFIED", "MESSAGE_TOO_LARGE"}  # gRPC itself cuts a message that is too large
    assert {reason for _, _, reason in MADE} == REASONS - elsewhere


def test_a_status_stays_far_below_8_kib_in_any_alphabet() -> None:
    long = "漢" * 4000
    many = [errors.FieldViolation(f"requests[{i}].{long}", long) for i in range(300)]
    for error in (errors.InvalidRequest(many), errors.NotFound("model", long), errors.FeedReplaced(long)):
        assert unpacked(error).trailer_bytes < 8192


async def test_a_name_out_of_control_reaches_the_caller_cut_and_printable(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for model in ("漢" * 5000, "\x1b[31m\0\r\n" * 500, "a" * 100_000):
            end = await failure(server.admission.Admit(admission_pb2.AdmitRequest(model=model)))
            assert (end.code, end.reason) == ("NOT_FOUND", "MODEL_NOT_FOUND")
            assert end.trailer_bytes < 8192
            assert "\x1b" not in end.text
            assert "\n" not in end.text


async def test_an_unexpected_exception_leaks_nothing_and_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def explodes(*_: object) -> None:
        raise ValueError(SECRET)

    monkeypatch.setattr(Admit, "__call__", explodes)
    async with serving(tmp_path) as server:
        request = admission_pb2.AdmitRequest(model="managed/local", worker_id="w", request_bytes=1)
        end = await failure(server.admission.Admit(request))
        assert (end.code, end.reason) == ("INTERNAL", "INTERNAL")
        assert "hunter2" not in f"{end.text} {end.metadata} {end.trailers!r}"
        assert "hunter2" in caplog.text  # the operator's log has it
        assert server.application.guard.running == 0
        batch = await failure(server.admission.AdmitBatch(admission_pb2.AdmitBatchRequest(requests=[request])))
        assert (batch.code, batch.reason) == ("INTERNAL", "INTERNAL")
        assert "hunter2" not in f"{batch.text} {batch.trailers!r}"


async def test_an_unexpected_exception_ends_a_stream_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server, server.collector() as collector:
        store = server.application._stores.facts

        async def explodes(*_: object) -> None:
            raise RuntimeError(SECRET)

        monkeypatch.setattr(store, "put", explodes)
        await collector.say(retract=admission_pb2.Retract())
        end = await collector.end()
        assert end is not None
        assert (end.code, end.reason) == ("INTERNAL", "INTERNAL")
        assert "hunter2" not in f"{end.text} {end.trailers!r}"


async def test_a_store_of_pins_that_fails_is_unavailable_and_never_a_fresh_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object) -> None:
        raise errors.StoreUnavailable("pins")

    async with serving(tmp_path) as server:
        await server.report(health())
        with monkeypatch.context() as patch:
            patch.setattr(SqlitePinStore, "get", fails)
            request = admission_pb2.AdmitRequest(model="managed/local", worker_id="new", request_bytes=1)
            end = await failure(server.admission.Admit(request))
            assert (end.code, end.reason) == ("UNAVAILABLE", "PIN_STORE_UNAVAILABLE")
            assert end.retry_delay is not None
            batch = await server.admission.AdmitBatch(admission_pb2.AdmitBatchRequest(requests=[request]))
            assert batch.results[0].error.code == 14
            assert batch.results[0].error.reason == "PIN_STORE_UNAVAILABLE"
        with monkeypatch.context() as patch:
            patch.setattr(SqlitePinStore, "create", fails)
            assert (await failure(server.admission.Admit(request))).reason == "PIN_STORE_UNAVAILABLE"
        assert (await server.admit(worker_id="new")).pin_state == types_pb2.PIN_STATE_NEW


async def test_a_refusal_with_300_candidates_in_cjk_keeps_its_code_and_its_trailers_small(tmp_path: Path) -> None:
    models = {f"model-{i:03}-{'x' * 200}": {"contextWindow": 131072} for i in range(300)}
    providers = {"account": {"kind": "subscription", "credential": "codex-login:main", "models": models}}
    config = {
        "providers": providers,
        "managedRouting": {"routes": {"managed/all": route(*(f"account/{m}" for m in models))}},
    }
    async with serving(tmp_path, config) as server:
        await server.report(quota("account", 0, "五小时" * 28))
        call = server.admission.Admit(
            admission_pb2.AdmitRequest(model="managed/all", worker_id="工", request_bytes=1, dry_run=True, explain=True)
        )
        answer = await call
        assert answer.refusal.reason == types_pb2.REFUSAL_REASON_NO_ELIGIBLE_CANDIDATE
        assert "五小时" in answer.refusal.message
        assert len(answer.evaluations) == 300
        assert await call.code() is grpc.StatusCode.OK
        trailers = await call.trailing_metadata() or ()
        assert sum(len(key) + len(value) + 32 for key, value in trailers) < 8192


def test_the_access_table_lists_exactly_the_methods_of_the_protocol() -> None:
    files = (admission_pb2, flow_pb2, selection_pb2, operator_pb2)
    methods = {
        f"/{service.full_name}/{method.name}"
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    envoys = {"/envoy.service.auth.v3.Authorization/Check", "/envoy.service.ext_proc.v3.ExternalProcessor/Process"}
    assert set(ACCESS) == methods | envoys
    assert all(access.roles and set(access.roles) <= ROLES for access in ACCESS.values())
    always = {method.rsplit("/", 1)[1] for method, access in ACCESS.items() if access.identity_always}
    operators = {m.name for m in operator_pb2.DESCRIPTOR.services_by_name["OperatorService"].methods}
    assert always == {"CapacityFeed", "ReportCapacity", "RegisterAgent", "DeregisterAgent"} | operators


EVERYBODY = [
    identity("gateway", "gateway"),
    identity("collector", "collector", providers=list(CONFIG["providers"])),
    identity("operator", "operator"),
    identity("viewer", "viewer"),
]


def method_call(channel: grpc.aio.Channel, method: str) -> Any:
    """Any method of the protocol as a callable that takes bytes."""
    _, service, name = method.split("/")
    found = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    request = message_factory.GetMessageClass(found.input_type)()
    kinds = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }
    return kinds[found.client_streaming, found.server_streaming](method), request.SerializeToString()


async def first_status(channel: grpc.aio.Channel, method: str, metadata: Any) -> str:
    """The reason that a call is turned away with; "" when it got past the guard."""
    call, body = method_call(channel, method)
    try:
        if isinstance(call, grpc.aio.UnaryUnaryMultiCallable):
            await call(body, metadata=metadata)
        elif isinstance(call, grpc.aio.UnaryStreamMultiCallable):
            stream = call(body, metadata=metadata)
            await asyncio.wait_for(stream.read(), 1)
            stream.cancel()
        else:
            stream = call(metadata=metadata)
            await stream.write(b"\n\0")
            await stream.done_writing()
            await stream.read()
    except grpc.aio.AioRpcError as error:
        return Failure(error).reason
    except TimeoutError:
        stream.cancel()
    return ""


TURNED_AWAY = {"IDENTITY_REQUIRED", "CREDENTIAL_INVALID", "ROLE_NOT_ALLOWED"}


async def test_every_method_answers_to_its_roles_and_to_nobody_else(tmp_path: Path) -> None:
    async with serving(tmp_path, identities=EVERYBODY) as server:
        for method, access in ACCESS.items():
            for role in sorted(ROLES):
                reason = await first_status(server.channel, method, bearer(f"{role}-token"))
                expected = "" if role in access.roles else "ROLE_NOT_ALLOWED"
                assert (reason if reason in TURNED_AWAY else "") == expected, (method, role)
            assert await first_status(server.channel, method, ()) == "IDENTITY_REQUIRED", method
            assert await first_status(server.channel, method, bearer("wrong")) == "CREDENTIAL_INVALID", method


async def test_without_identities_this_machine_is_a_gateway_and_the_rest_needs_the_token(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for method, access in ACCESS.items():
            reason = await first_status(server.channel, method, ())
            needed = access.identity_always or "gateway" not in access.roles
            assert (reason if reason in TURNED_AWAY else "") == ("IDENTITY_REQUIRED" if needed else ""), method
            reason = await first_status(server.channel, method, server.metadata)
            assert reason not in TURNED_AWAY, method
            assert await first_status(server.channel, method, bearer("wrong")) == "CREDENTIAL_INVALID", method


@pytest.mark.parametrize("value", ["Basic dXNlcg==", "Bearer", "Bearer ", "token", "bearer  ", "Bearer a b"])
async def test_what_is_no_bearer_token_is_nobodys(tmp_path: Path, value: str) -> None:
    async with serving(tmp_path) as server:
        end = await failure(
            server.admission.Catalog(admission_pb2.CatalogRequest(), metadata=(("authorization", value),))
        )
        assert (end.code, end.reason) == ("UNAUTHENTICATED", "CREDENTIAL_INVALID")


async def test_the_local_token_is_ours_alone_and_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "state" / "local.token"
    async with serving(tmp_path):
        status = path.stat()
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        first = path.read_text()
        assert len(first.strip()) >= 43  # 256 bits
    async with serving(tmp_path) as server:
        assert path.read_text() == first
        assert (await server.status()).ready


async def test_with_identities_no_local_token_is_made_and_none_opens_anything(tmp_path: Path) -> None:
    async with serving(tmp_path):
        pass
    token = (tmp_path / "state" / "local.token").read_text().strip()
    async with serving(tmp_path, identities=EVERYBODY) as server:
        request = operator_pb2.GetStatusRequest()
        assert (
            await failure(server.operator.GetStatus(request, metadata=bearer(token)))
        ).reason == "CREDENTIAL_INVALID"


async def test_namespaces_do_not_see_each_others_pins(tmp_path: Path) -> None:
    teams = [
        identity("one", "gateway", namespace="team-1"),
        identity("two", "gateway", namespace="team-2"),
        identity("gpu", "collector", providers=["qwen"]),
        identity("op", "operator", namespace="team-2"),
    ]
    async with serving(tmp_path, identities=teams) as server:
        report = admission_pb2.ReportCapacityRequest(collector_id="c", observations=[health()])
        await server.admission.ReportCapacity(report, metadata=bearer("gpu-token"))
        request = admission_pb2.AdmitRequest(model="managed/local", worker_id="main", request_bytes=1)
        for team in ("one", "two"):
            answer = await server.admission.Admit(request, metadata=bearer(f"{team}-token"))
            assert answer.pin_state == types_pb2.PIN_STATE_NEW
        listed = await server.operator.ListPins(operator_pb2.ListPinsRequest(), metadata=bearer("op-token"))
        assert len(listed.pins) == 1
        retire = operator_pb2.RetirePinsRequest(model="managed/local", reason="x")
        assert (await server.operator.RetirePins(retire, metadata=bearer("op-token"))).retired == 1
        assert (
            await server.admission.Admit(request, metadata=bearer("one-token"))
        ).verdict == types_pb2.VERDICT_ADMITTED
        refused = await server.admission.Admit(request, metadata=bearer("two-token"))
        assert refused.refusal.reason == types_pb2.REFUSAL_REASON_PIN_RETIRED


@pytest.mark.parametrize("junk", [b"\xff\xff\xff", b"\x12\x02w\xe7"], ids=["no message", "no UTF-8"])
async def test_bytes_that_are_no_message_are_rejected_with_our_reason(tmp_path: Path, junk: bytes) -> None:
    async with serving(tmp_path) as server:
        raw: Any = server.channel
        rejected = await failure(raw.unary_unary("/tidegate.v1.AdmissionService/Admit")(junk))
        assert (rejected.code, rejected.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
        feed = raw.stream_stream("/tidegate.v1.AdmissionService/CapacityFeed")
        streamed = await failure(feed(iter([junk]), metadata=server.metadata).read())
        assert (streamed.code, streamed.reason) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
