"""The HTTP side of a real server: catalog, probes, what operators read, errors and headers."""

import re
from pathlib import Path

import httpx
import pytest
import tidegate_server.admin
from tidegate.v1 import admission_pb2
from tidegate_server.config import load
from tidegate_server.core.explain import REFUSED_RULES
from tidegate_server.core.model import RefusalReason
from tidegate_server.stores.sqlite_pins import SqlitePinStore
from tidegate_server.wiring.admin import bind
from tidegate_server.wiring.listeners import CannotListen

from tests.admin.scene import SCENE, TRACES, Http, admin, play
from tests.integration.server.harness import CLAUDE, CODEX, PAID, QWEN, health, identity, quota, until

PAGE = Path(tidegate_server.admin.__file__).parent / "page"
PATHS = (
    "/metrics", "/health", "/v1/models", "/v1/model-catalog", "/api/status", "/api/capacity", "/api/outlook",
    "/api/rates", "/api/decisions", "/api/flows", "/api/orchestrator/stats",
)  # fmt: skip


async def test_v1_models_lists_fixed_models_alone(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        listed = await http.data("/v1/models")
    assert listed["object"] == "list"
    assert [row["id"] for row in listed["data"]] == [QWEN, CLAUDE, CODEX, PAID]
    assert listed["data"][0] == {"id": QWEN, "object": "model", "created": 0, "owned_by": "qwen"}


async def test_the_model_catalog_keeps_routes_and_hides_them(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        catalog = await http.data("/v1/model-catalog")
    rows = {row["id"]: row for row in catalog["models"]}
    assert {name for name, row in rows.items() if row["visibility"] == "hide"} == {
        "managed/local", "managed/routine", "managed/accounts",
    }  # fmt: skip
    assert rows[QWEN]["visibility"] == "show"
    assert rows["managed/routine"] | {"metadata": {}} == {
        "id": "managed/routine",
        "visibility": "hide",
        "managed": True,
        "context_window": 32768,
        "reasoning_efforts": ["low", "high"],
        "input_modalities": ["text"],
        "collaboration_contract": "v2",
        "metadata": {},
    }
    assert catalog["features"] == ["managed-worker-routing-v1", "flow-guard-v1", "agent-selection-v1"]


async def test_probes_need_nobody_and_readiness_follows_the_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with admin(tmp_path, identities=[identity("v", "viewer")]) as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).status_code == 200
        monkeypatch.setattr(SqlitePinStore, "healthy", lambda _: False)
        assert (await http.get("/readyz")).status_code == 503
        assert (await http.get("/healthz")).status_code == 200
        answer = await http.get("/health", "v-token")
        assert answer.status_code == 503
        assert answer.json()["dependencies"]["pins"] == "does not work"


async def test_health_tells_the_features_to_an_identity_alone(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        refused = await http.get("/health")
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert refused.json()["error"]["reason"] == "IDENTITY_REQUIRED"
        token = (tmp_path / "state" / "local.token").read_text().strip()
        told = await http.data("/health", token)
    assert (told["status"], told["ready"]) == ("ok", True)
    assert "managed-worker-routing-v1" in told["features"]


ACCESS = {
    "viewer": set(PATHS),
    "operator": set(PATHS),
    "gateway": set(PATHS),
    "collector": {"/v1/models", "/v1/model-catalog", "/api/capacity"},
}


@pytest.mark.parametrize("role", ACCESS)
async def test_each_role_reads_what_it_may(tmp_path: Path, role: str) -> None:
    settings = {"providers": ["qwen"]} if role == "collector" else {}
    async with admin(tmp_path, identities=[identity("i", role, **settings)]) as http:
        for path in PATHS:
            expected = 200 if path in ACCESS[role] else 403
            assert (await http.get(path, "i-token")).status_code == expected, path
            assert (await http.get(path)).status_code == 401, path
            assert (await http.get(path, "another")).status_code == 401, path


async def test_without_identities_this_machine_reads_by_its_own_name_only(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        for host, status in (
            ("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:9464", 200), ("127.0.0.1.evil.example", 401),
            ("evil.example:9464", 401), ("", 401), ("[evil]", 401),
        ):  # fmt: skip
            assert (await http.get("/api/capacity", host=host)).status_code == status, host
        token = (tmp_path / "state" / "local.token").read_text().strip()
        assert (await http.get("/api/capacity", token, host="evil.example")).status_code == 200


async def test_a_reload_of_the_identities_counts_at_once(tmp_path: Path) -> None:
    async with admin(tmp_path, identities=[identity("old", "viewer")]) as http:
        assert (await http.get("/api/status", "old-token")).status_code == 200
        http.served.write({k: v for k, v in SCENE.items() if k != "flow"}, identities=[identity("new", "viewer")])
        await http.served.running.reload()
        assert (await http.get("/api/status", "old-token")).status_code == 401
        assert (await http.get("/api/status", "new-token")).status_code == 200


async def test_nothing_can_be_changed_and_what_is_unknown_is_said_in_json(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        missing = await http.get("/api/nothing")
        assert (missing.status_code, missing.json()["error"]["reason"]) == (404, "NO_SUCH_PATH")
        for path, field in (
            ("/api/decisions?page_size=x", "page_size"),
            ("/api/decisions?page_token=zz", "page_token"),
            ("/api/decisions?page_token=ffffffffffffffff", "page_token"),
            ("/api/decisions?kind=none", "kind"),
            ("/api/flows?page_size=-1", "page_size"),
            ("/api/flows?page_token=zz", "page_token"),
        ):
            answer = await http.get(path)
            assert answer.status_code == 400, path
            assert [v["field"] for v in answer.json()["error"]["violations"]] == [field], path
        for path in (
            "/api/capacity?provider=nobody",
            "/api/capacity?model=none",
            "/api/flows/f00",
            "/api/decisions/no",
        ):
            assert (await http.get(path)).status_code == 404, path


async def test_an_unexpected_error_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with admin(tmp_path) as http:

        def explodes(_: object) -> None:
            raise RuntimeError("hunter2")

        monkeypatch.setattr(type(http.served.application.operator_verbs.status), "__call__", explodes)
        answer = await http.get("/api/status")
    assert answer.status_code == 500
    assert "hunter2" not in answer.text


async def test_browsers_are_told_to_run_and_keep_nothing_foreign(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        page = await http.get("/")
        data = await http.get("/api/capacity")
    for answer in (page, data):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers
    assert data.headers["cache-control"] == "no-store"


async def test_the_page_names_no_other_host(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        page = (await http.get("/")).text
        assets = sorted(set(re.findall(r'"(/assets/[^"]+)"', page)))
        scripts = [f"/assets/{file.name}" for file in PAGE.iterdir() if file.suffix == ".js"]
        assert len(scripts) > 5
        for path in {*assets, *scripts}:
            answer = await http.get(path)
            assert answer.status_code == 200, path
            foreign = [url for url in re.findall(r"(?:https?:)?//[\w.]+", answer.text) if "www.w3.org" not in url]
            assert not [url for url in foreign if "." in url], path


async def test_the_outlook_is_the_decision_that_a_new_worker_gets(tmp_path: Path) -> None:
    async with admin(tmp_path, SCENE) as http:
        await play(http.served)
        outlook = {row["route"]: row for row in (await http.data("/api/outlook"))["routes"]}
        for name, row in outlook.items():
            answer = await http.served.admit(name, "somebody-new", explain=True, dry_run=True)
            assert row["candidate"] == answer.binding.candidate, name
            assert row["suggestion"] == answer.suggestion.replace("\u202f", " "), name
            assert [e["candidate"] for e in row["evaluations"]] == [e.candidate for e in answer.evaluations]
    assert outlook["managed/routine"]["candidate"] == QWEN
    assert outlook["managed/accounts"]["candidate"] == PAID
    assert outlook["managed/strong"]["refusal"]["reason"] == "REFUSAL_REASON_NO_ELIGIBLE_CANDIDATE"


async def test_a_decision_is_explained_in_the_words_of_the_answer(tmp_path: Path) -> None:
    async with admin(tmp_path, SCENE) as http:
        await http.served.report(health())
        refused = await http.served.admit("managed/strong", "deep", timeout=0.3)
        await http.written(1)
        (row,) = (await http.data("/api/decisions?model=managed/strong"))["decisions"]
        whole = await http.data(f"/api/decisions/{refused.decision_id}")
    assert row["decision_id"] == refused.decision_id
    assert row["message"] == refused.refusal.message
    told = whole["explanation"]
    assert told["rule"] == REFUSED_RULES[RefusalReason.CAPACITY_UNKNOWN]
    assert told["refusal"]["message"] == refused.refusal.message
    assert told["suggestion"] == refused.suggestion
    assert [e["detail"] for e in told["evaluations"]] == [e.detail for e in refused.evaluations]
    assert whole["detail"]["route"]["name"] == "managed/strong"


async def test_every_kind_of_decision_can_be_listed_and_opened_page_by_page(tmp_path: Path) -> None:
    async with admin(tmp_path, SCENE) as http:
        count = await play(http.served)
        await http.written(count)
        seen, token = [], ""
        while True:
            page = await http.data(f"/api/decisions?page_size=4&page_token={token}")
            seen += page["decisions"]
            token = page["next_page_token"]
            if not token:
                break
        assert len({row["decision_id"] for row in seen}) == count
        for row in seen:
            whole = await http.data(f"/api/decisions/{row['decision_id']}")
            assert whole["explanation"]["rule"], row
    assert "worker-1" not in str(seen), "a worker's id is nobody's business"


async def test_flows_are_told_with_the_limits_that_they_have(tmp_path: Path) -> None:
    async with admin(tmp_path, SCENE) as http:
        await play(http.served)
        flows = {flow["flow_id"]: flow for flow in (await http.data("/api/flows"))["flows"]}
        one = await http.data(f"/api/flows/{TRACES[0]}")
        unfinished = (await http.data("/api/flows?open_only=1"))["flows"]
    assert set(flows) == set(TRACES)
    assert {flow["flow_id"] for flow in unfinished} == {TRACES[0], TRACES[2]}
    assert (one["root_agent"], one["max_depth_reached"], one["invocations"], one["refusals"]) == ("planner", 3, 5, 1)
    assert one["limits"] == {"depth": 4, "fan_out": 8, "tokens": "60000", "time": "600s"}
    assert one["tokens"] == str(20_000 + 9_000 + 4_200 + 12_345)


async def test_capacity_is_filtered_by_provider(tmp_path: Path) -> None:
    async with admin(tmp_path, SCENE) as http:
        await play(http.served)
        found = await http.data("/api/capacity?provider=codex&provider=qwen")
    assert {fact["observation"]["provider"] for fact in found["facts"]} == {"codex", "qwen"}


async def test_a_flood_of_facts_is_cut_and_said_to_be(tmp_path: Path) -> None:
    async with admin(tmp_path) as http:
        await http.served.report(*(quota("codex", 50, f"w{n:03}") for n in range(70)), health())
        found = await http.data("/api/capacity")
        whole = await http.data("/api/capacity?provider=codex")
        outlook = await http.data("/api/outlook")
    assert [fact["observation"]["provider"] for fact in found["facts"]] == ["codex"] * 50 + ["qwen"]
    assert found["left_out"] == 20
    assert (len(whole["facts"]), whole["left_out"]) == (70, 0)
    assert max(len(e["facts"]) for route in outlook["routes"] for e in route["evaluations"]) == 50


async def test_a_namespace_sees_its_own_decisions_and_flows(tmp_path: Path) -> None:
    people = [identity("a", "gateway", namespace="a"), identity("b", "viewer", namespace="b")]
    async with admin(tmp_path, identities=people) as http:
        served = http.served
        request = admission_pb2.AdmitRequest(model=QWEN, worker_id="w", request_bytes=1)
        await served.admission.Admit(request, metadata=(("authorization", "Bearer a-token"),))
        await http.written(1)
        assert len((await http.data("/api/decisions", "a-token"))["decisions"]) == 1
        assert (await http.data("/api/decisions", "b-token"))["decisions"] == []


async def test_statistics_of_the_orchestrator_are_a_rollup_with_its_moment(tmp_path: Path) -> None:
    async with admin(tmp_path, SCENE) as http:
        await http.written(await play(http.served))
        stats = await http.data("/api/orchestrator/stats")
    groups = {(row["group"], row["key"]): row["figures"] for row in stats["rows"]}
    assert stats["as_of_time"].endswith("Z")
    assert groups["admission", "managed/routine"]["decisions"] == 6


async def test_an_address_that_is_taken_is_a_warning_unless_somebody_asked_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with admin(tmp_path) as http:
        taken = http.base.removeprefix("http://")
        asked = tmp_path / "asked.json"
        asked.write_text(f'{{"admin": {{"listen": "{taken}"}}}}')
        with pytest.raises(CannotListen, match=r"admin\.listen"):
            bind(load(asked, {}))
        configuration = load(asked, {}).model_copy()
        configuration.model_fields_set.discard("admin")
        assert bind(configuration) is None
        assert "is taken" in caplog.text
        one_further = bind(load(asked, {}), places=5)
        assert one_further is not None
        assert one_further.getsockname()[1] > int(taken.rpartition(":")[2])
        one_further.close()


async def test_the_end_of_the_server_ends_its_streams(tmp_path: Path) -> None:
    async with httpx.AsyncClient(timeout=10) as client:
        async with admin(tmp_path) as http:
            stream = await client.send(client.build_request("GET", f"{http.base}/api/flows/events"), stream=True)
            lines = stream.aiter_lines()
            assert await anext(lines) == ": connected"
            watching = http.served.application.flow_verbs.watch_flows
            await until(lambda: watching.watchers == 1)
        rest = [line async for line in lines]
    assert "".join(rest) == ""
    assert watching.watchers == 0
    assert isinstance(http, Http)
