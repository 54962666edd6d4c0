"""Loading: both formats, the environment over the file, the options over both."""

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidegate_server.config import MIRRORS, Address, Configuration, load, parse
from tidegate_server.config.document import read_document
from tidegate_server.config.scalars import DAY, duration, spell_duration
from tidegate_server.config.sources import without_password
from tidegate_server.core.model import SECOND, Blocker, Tier
from tidegate_server.errors import ConfigurationError

GOOD = Path(__file__).parent / "good"


def faults_of(text: str | bytes, environment: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        parse(text, environment)
    return list(caught.value.faults)


@pytest.mark.parametrize("path", sorted(GOOD.iterdir()), ids=lambda path: path.name)
def test_good_fixtures_load(path: Path) -> None:
    assert isinstance(load(path, {}), Configuration)


def test_nothing_given_is_every_default_of_the_contract() -> None:
    c = parse("{}")
    assert c.listen == (Address("127.0.0.1", 50051),)
    assert c.admin.listen == Address("127.0.0.1", 9464)
    assert "admin" not in c.model_fields_set
    assert (c.insecure, c.reflection, c.state_directory) == (False, True, Path("state"))
    assert (c.stores, c.health, c.tls, c.identities, c.is_shared) == (None, None, None, (), False)
    assert c.cold_wait == 2_500_000_000
    minute = 60 * SECOND
    assert (c.freshness.health, c.freshness.quota) == (15 * SECOND, 15 * minute)
    assert (c.freshness.balance, c.freshness.availability) == (5 * minute, 5 * minute)
    flow = c.flow
    assert (flow.max_depth, flow.max_fan_out, flow.max_tokens) == (5, 20, 100_000)
    assert (flow.timeout, flow.state_ttl) == (120 * SECOND, 300 * SECOND)
    s = c.selection
    assert (s.shortlist_threshold, s.shortlist_size, s.max_history_messages) == (15, 10, 20)
    assert (s.deadlines.shortlist, s.deadlines.rerank, s.deadlines.select) == (2 * SECOND, 2 * SECOND, 10 * SECOND)
    assert (s.chat, s.embeddings) == (None, None)
    limits = c.limits
    assert (limits.max_message_bytes, limits.max_concurrent_calls) == (8_388_608, 2000)
    assert (limits.max_cold_waiters, limits.max_feeds, limits.default_deadline) == (1024, 256, 30 * SECOND)
    assert (c.decision_log.queue, c.decision_log.retention) == (10_000, 30 * DAY)
    assert c.managed_routing.paid_models == ("deepseek/deepseek-v4-flash", "deepseek-v4-flash")


def test_the_contracts_example_is_read_as_it_is_meant() -> None:
    c = load(GOOD / "contract.yaml", {})
    assert c.is_shared
    assert c.stores is not None
    assert c.stores.durable.get_secret_value() == "postgresql://tidegate@db.internal/tidegate"
    qwen = c.providers["qwen"]
    assert (qwen.kind, qwen.session_affinity) == (Tier.LOCAL, True)
    assert qwen.saturation is not None
    assert (qwen.saturation.max_waiting, qwen.saturation.max_kv_usage) == (5, 0.8)
    assert c.providers["claude-primary"].required_windows == ("5h", "7d")
    assert c.providers["openrouter"].models["deepseek/deepseek-v4-flash"].alias == "or-deepseek"
    assert c.flow.profiles["coding"].timeout == 30 * 60 * SECOND
    assert c.prices["gpt-4o"].input_per_million == Decimal("2.50")
    edge, gpu = c.identities
    assert (edge.namespace, edge.start_flows, gpu.providers) == ("team-a", True, ("qwen",))
    assert c.selection.chat is not None
    assert c.selection.chat.api_key == "env:OPENAI_API_KEY"


def test_the_seeds_example_loads_with_spaces_and_with_tabs() -> None:
    spaces, tabs = load(GOOD / "seed.json", {}), load(GOOD / "seed-with-tabs.json", {})
    assert spaces == tabs
    route = spaces.managed_routing.routes["managed/routine"]
    assert route.candidates[-1] == "or-deepseek"
    assert route.paid_on == {Blocker.QUOTA_EXHAUSTED, Blocker.QUOTA_BELOW_RESERVE, Blocker.ACCOUNT_DISABLED}
    assert parse((GOOD / "seed-with-tabs.json").read_bytes()) == spaces, "JSON is known by its first brace, too"


def test_other_spellings_of_the_same_things() -> None:
    c = load(GOOD / "spellings.yaml", {})
    assert c.listen == (Address("", 0, "/run/tidegate/tidegate.sock"),)
    small = c.providers["engine"].models["small"]
    assert (small.context_window, type(small.context_window)) == (32768, int)
    assert small.metadata == {"yes": "no", "released": "2026-01-31"}
    assert c.providers["engine"].models["4.1"].context_window == 40_000
    assert c.managed_routing.routes["managed/plain"].paid_on == {Blocker.PROVIDER_DOWN, Blocker.AUTH_FAILED}


def test_yaml_in_braces_is_yaml() -> None:
    assert parse("{coldWait: 1s}").cold_wait == SECOND


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"\xff\xfe", "the file must be UTF-8, which its byte 0 is not"),
        (b"a: \x00", "the file must not hold the character U+0000"),
        (b"# " + b"x" * (1 << 20), "the file must have at most 1048576 bytes (1 MiB), not 1048578"),
        (b'{"a": ' * 5000, "the file is nested deeper than 32 levels"),
        (b"3", "the file must be a mapping of settings"),
    ],
)
def test_files_that_are_no_configuration(content: bytes, fault: str) -> None:
    assert faults_of(content) == [fault]


def test_a_byte_order_mark_and_crlf_change_nothing() -> None:
    text = (GOOD / "spellings.yaml").read_text()
    assert parse(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()) == parse(text)
    seed = (GOOD / "seed.json").read_bytes()
    assert parse(b"\xef\xbb\xbf" + seed, is_json=True) == parse(seed)


def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            load(path, {})


def test_a_json_name_holds_the_file_to_json(tmp_path: Path) -> None:
    path = tmp_path / "tidegate.json"
    path.write_text("coldWait: 1s")
    with pytest.raises(ConfigurationError, match="no JSON"):
        load(path, {})


# The environment


def test_every_setting_outside_of_lists_and_maps_has_a_variable() -> None:
    assert len(MIRRORS) == 42
    for name, path in {
        "TIDEGATE_FLOW_MAX_DEPTH": ("flow", "maxDepth"),
        "TIDEGATE_COLD_WAIT": ("coldWait",),
        "TIDEGATE_STATE_DIRECTORY": ("stateDirectory",),
        "TIDEGATE_FRESHNESS_HEALTH": ("freshness", "health"),
        "TIDEGATE_SELECTION_DEADLINES_SHORTLIST": ("selection", "deadlines", "shortlist"),
        "TIDEGATE_SELECTION_CHAT_BASE_URL": ("selection", "chat", "baseUrl"),
        "TIDEGATE_TLS_CLIENT_CA": ("tls", "clientCa"),
        "TIDEGATE_LIMITS_MAX_COLD_WAITERS": ("limits", "maxColdWaiters"),
    }.items():
        assert MIRRORS[name].path == path


def test_the_environment_wins_over_the_file_and_options_over_both(tmp_path: Path) -> None:
    path = tmp_path / "tidegate.yaml"
    path.write_text("flow: {maxDepth: 3, maxFanOut: 4}\ncoldWait: 1s\nstateDirectory: /a\nlisten: 127.0.0.1:1\n")
    environment = {
        "TIDEGATE_FLOW_MAX_DEPTH": "7",
        "TIDEGATE_COLD_WAIT": "300ms",
        "TIDEGATE_STATE_DIRECTORY": "/b",
        "TIDEGATE_LISTEN": "127.0.0.1:2, unix:/run/t.sock",
        "TIDEGATE_REFLECTION": "false",
        "TIDEGATE_LIMITS_MAX_FEEDS": "",
        "PATH": "/bin",
    }
    c = load(path, environment)
    assert (c.flow.max_depth, c.flow.max_fan_out, c.cold_wait) == (7, 4, 300_000_000)
    assert c.listen == (Address("127.0.0.1", 2), Address("", 0, "/run/t.sock"))
    assert (c.state_directory, c.reflection, c.limits.max_feeds) == (Path("/b"), False, 256)
    c = load(path, environment, listen=["127.0.0.1:3"], state_directory="/c")
    assert (c.listen, c.state_directory) == ((Address("127.0.0.1", 3),), Path("/c"))


def test_the_process_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tidegate.yaml"
    path.write_text("{}")
    monkeypatch.setenv("TIDEGATE_FLOW_MAX_DEPTH", "9")
    assert load(path).flow.max_depth == 9
    assert load(path, {}).flow.max_depth == 5


def test_the_agent_selections_older_variables() -> None:
    older = {"ROUTER_SHORTLIST_THRESHOLD": "30", "ROUTER_SHORTLIST_SIZE": "5", "ROUTER_MODEL": "4"}
    c = parse("selection: {shortlistSize: 9}", older)
    assert (c.selection.shortlist_threshold, c.selection.shortlist_size, c.selection.chat) == (30, 5, None)
    chat = "selection: {chat: {baseUrl: 'http://localhost:8080/v1/', model: gpt-4o}}"
    c = parse(chat, older)
    assert c.selection.chat is not None
    assert (c.selection.chat.model, c.selection.chat.base_url) == ("4", "http://localhost:8080/v1")
    c = parse(chat, older | {"TIDEGATE_SELECTION_CHAT_MODEL": "tiny", "TIDEGATE_SELECTION_SHORTLIST_SIZE": "6"})
    assert c.selection.chat is not None
    assert (c.selection.chat.model, c.selection.shortlist_size) == ("tiny", 6)
    c = parse("{}", {"ROUTER_MODEL": "tiny", "TIDEGATE_SELECTION_CHAT_BASE_URL": "http://localhost:1"})
    assert c.selection.chat is not None
    assert c.selection.chat.model == "tiny"


def test_a_bad_variable_is_named() -> None:
    environment = {
        "TIDEGATE_FLOW_MAX_DEPTH": "deep",
        "TIDEGATE_FLOW_MAX_DEPHT": "5",
        "TIDEGATE_LISTEN": "127.0.0.1:1,0.0.0.0:1",
        "TIDEGATE_TLS_KEY": "server.key",
        "TIDEGATE_INSECURE": "yes",
        "TIDEGATE_STORES_LIVE": "redis://:hunter2@",
        "ROUTER_SHORTLIST_SIZE": "0",
    }
    faults = faults_of("flow: {maxFanOut: -1}", environment)
    assert {fault.partition(":")[0] for fault in faults} == {
        "flow.maxFanOut",
        "TIDEGATE_FLOW_MAX_DEPTH",
        "TIDEGATE_INSECURE",
        "TIDEGATE_STORES_LIVE",
        "stores.durable",
        "keys.pins",
        "keys.tracestate",
        "tls.certificate",
        "ROUTER_SHORTLIST_SIZE",
        "TIDEGATE_FLOW_MAX_DEPHT",
    }
    assert faults[-1].endswith('did you mean "TIDEGATE_FLOW_MAX_DEPTH"?')
    assert "hunter2" not in "".join(faults)


def test_the_variables_of_commands_and_of_kubernetes_services_are_no_settings() -> None:
    parse(
        "{}",
        {
            "TIDEGATE_SERVER": "127.0.0.1:50051",
            "TIDEGATE_TOKEN_FILE": "/t",
            "TIDEGATE_CONFIG": "/c",
            "TIDEGATE_PORT": "tcp://10.0.0.1:50051",
            "TIDEGATE_PORT_50051_TCP_ADDR": "10.0.0.1",
            "TIDEGATE_SERVICE_HOST": "10.0.0.1",
            "TIDEGATE_SERVICE_PORT_GRPC": "50051",
            "TIDEGATE_ADMIN_SERVICE_HOST": "10.0.0.2",
        },
    )


def test_an_option_is_named_in_its_fault(tmp_path: Path) -> None:
    path = tmp_path / "tidegate.yaml"
    path.write_text("{}")
    with pytest.raises(ConfigurationError) as caught:
        load(path, {}, listen=["127.0.0.1"], state_directory="")
    assert [fault.partition(":")[0] for fault in caught.value.faults] == ["--listen", "--state-directory"]


# Values


@given(st.integers(1, 3650 * DAY))
@settings(deadline=None)
def test_a_duration_is_written_as_it_is_read(nanos: int) -> None:
    assert duration(spell_duration(nanos)) == nanos


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("300ms", 300_000_000),
        ("2.5s", 2_500_000_000),
        ("15m", 900 * SECOND),
        ("5h", 18_000 * SECOND),
        ("30d", 30 * DAY),
    ],
)
def test_durations(text: str, nanos: int) -> None:
    assert duration(text) == nanos
    assert spell_duration(nanos) == text


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.9.10:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/x", True),
        ("unix:///x", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("[2001:db8::1]:1", False),
        ("localhost.example.com:1", False),
    ],
)
def test_what_is_reachable_from_other_machines(text: str, loopback: bool) -> None:
    c = parse(json.dumps({"listen": text, "insecure": True}))
    assert c.listen[0].is_loopback is loopback
    assert str(c.listen[0]) == text.replace("unix:///", "unix:/")


def test_any_free_port_may_be_asked_for_twice_and_the_health_listener_is_plaintext_anywhere() -> None:
    c = parse("listen: ['127.0.0.1:0', '127.0.0.1:0']\nadmin: {listen: '127.0.0.1:0'}\nhealth: {listen: '0.0.0.0:1'}")
    assert c.health is not None
    assert not c.health.listen.is_loopback


@pytest.mark.parametrize(
    "source",
    [
        "none",
        "env:KEY",
        "file:/run/secrets/the key",
        "keyring:tidegate/openai",
        "claude-oauth:primary",
        "codex-login:main",
    ],
)
def test_sources_of_credentials(source: str) -> None:
    text = json.dumps({"providers": {"p": {"kind": "paid", "credential": source}}})
    assert parse(text).providers["p"].credential == source


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:hunter2@h:5432/d", "postgresql://u@h:5432/d"),
        ("postgresql://h/d?password=hunter2&sslmode=require", "postgresql://h/d?sslmode=require"),
        ("valkey://:hunter2@h:6379/0", "valkey://@h:6379/0"),
        ("redis://h", "redis://h"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_stores_password_is_in_no_representation() -> None:
    text = (
        "stores: {durable: 'postgresql://u:hunter2@h/d', live: 'redis://:hunter2@h'}\nkeys: {pins: a, tracestate: [b]}"
    )
    c = parse(text)
    assert "hunter2" not in repr(c) + str(c.model_dump(mode="json")) + c.model_dump_json()


# Whatever the text, an answer


def answer(text: str) -> Configuration | tuple[str, ...]:
    """The configuration that the text is, or its faults; anything else is raised."""
    try:
        return parse(text)
    except ConfigurationError as error:
        return error.faults


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_configuration_or_a_configuration_error(text: str) -> None:
    assert answer(text)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=8,
)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_value_in_any_place_is_a_configuration_or_a_configuration_error(data: st.DataObject) -> None:
    tree, _ = read_document((GOOD / "contract.yaml").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place: object = tree
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))  # type: ignore[arg-type]
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            below = place[key]  # type: ignore[index]
            if not isinstance(below, dict | list) or data.draw(st.booleans()):
                place[key] = data.draw(plain)  # type: ignore[index]
                break
            place = below
    assert answer(json.dumps(tree))
