"""A server as its own process: killed, drained, started twice; and the exit codes of the commands."""

import json
import signal
import socket
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidegate import Client
from tidegate.v1 import types_pb2

from tests.e2e.processes import Process, command, served, write

ADMITTED = types_pb2.VERDICT_ADMITTED
HEALTHY = types_pb2.Observation(
    provider="qwen", age=Duration(), health=types_pb2.Health(state=types_pb2.HEALTH_STATE_HEALTHY)
)


def admitted(client: Client, worker_id: str) -> types_pb2.PinState.ValueType:
    """Admit with a fresh fact; the pin's state."""
    client.report_capacity("c", [HEALTHY])
    answer = client.admit("managed/local", worker_id, 1).response
    assert answer.verdict == ADMITTED, answer
    return answer.pin_state


def test_a_pin_survives_kill_minus_9(tmp_path: Path) -> None:
    config = write(tmp_path)
    with served(config) as server:
        with server.client() as client:
            for index in range(20):
                assert admitted(client, f"w{index}") == types_pb2.PIN_STATE_NEW
        server.kill()  # right after the last answer
    with served(config) as server, server.client() as client:
        assert client.verify_pins().checked == 20
        assert client.verify_pins().corrupt == 0
        for index in range(20):
            assert admitted(client, f"w{index}") == types_pb2.PIN_STATE_EXISTING


def test_sigterm_drains_and_ends_well_before_the_grace(tmp_path: Path) -> None:
    config = write(tmp_path)
    server = Process(config)
    try:
        with grpc.insecure_channel(server.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            began = time.monotonic()
            server.send(signal.SIGTERM)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert server.end() == 0
            assert time.monotonic() - began < 5  # an open Watch does not hold it for the grace of 15 s
    finally:
        server.kill()
    with served(config) as again, again.client() as client:
        assert client.serving()


def test_a_second_server_on_the_same_port_is_refused_and_the_first_serves_on(tmp_path: Path) -> None:
    with served(write(tmp_path)) as first:
        (tmp_path / "other").mkdir()
        second = write(tmp_path / "other", listen=first.address)
        result = command("serve", "--config", second)
        assert result.returncode == 1
        assert "cannot listen" in result.stderr
        assert "Traceback" not in result.stderr
        with first.client() as client:
            assert client.serving()


def test_a_second_server_on_the_same_state_directory_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    with served(write(tmp_path)) as first:
        with first.client() as client:
            admitted(client, "w")
        result = command("serve", "--config", write(tmp_path, "second.json"))
        assert result.returncode == 1
        assert str(tmp_path / "state") in result.stderr
        assert "Traceback" not in result.stderr
        with first.client() as client:
            assert admitted(client, "w") == types_pb2.PIN_STATE_EXISTING


def test_a_second_server_on_the_same_unix_socket_is_refused(tmp_path: Path) -> None:
    where = f"unix:{tmp_path / 'gate.sock'}"
    with served(write(tmp_path, listen=where)) as first:
        assert first.address == where
        (tmp_path / "other").mkdir()
        result = command("serve", "--config", write(tmp_path / "other", listen=where))
        assert result.returncode == 1
        assert "another server listens there" in result.stderr
        with first.client() as client:
            assert client.serving()
        first.kill()
    with (
        served(write(tmp_path, listen=where)) as again,
        again.client() as client,
    ):  # a dead server's socket is no hindrance
        assert client.serving()


def test_a_killed_server_leaves_no_lock_behind(tmp_path: Path) -> None:
    for _ in range(2):
        with served(write(tmp_path)) as server, server.client() as client:
            assert client.serving()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_both_signals_end_it_well(tmp_path: Path, number: signal.Signals) -> None:
    with served(write(tmp_path)) as server:
        server.send(number)
        assert server.end() == 0


def test_sighup_reloads(tmp_path: Path) -> None:
    config = write(tmp_path)
    with served(config) as server, server.client() as client:
        before = client.get_status().configuration_revision
        write(tmp_path, coldWait="0.06s")
        server.send(signal.SIGHUP)
        until = time.monotonic() + 10
        while client.get_status().configuration_revision == before:
            assert time.monotonic() < until


def test_a_server_that_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    (tmp_path / "state").chmod(0o755)
    result = command("serve", "--config", write(tmp_path))
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert "state" in result.stderr


def test_exit_codes_of_commands_that_need_no_server(tmp_path: Path) -> None:
    good, bad = write(tmp_path), tmp_path / "bad.json"
    bad.write_text('{"nonsense": 1, "coldWait": -1}')
    assert command("version").returncode == 0
    assert json.loads(command("config", "schema").stdout)["type"] == "object"
    assert command("check", "--config", good).returncode == 0
    result = command("check", "--config", bad, "--json")
    assert result.returncode == 1
    assert len(json.loads(result.stdout)["faults"]) == 2
    assert command("check", "--config", tmp_path / "none.yaml").returncode == 1
    assert command("serve", "--config", bad).returncode == 1
    for wrong in ((), ("nonsense",), ("serve",), ("check",), ("pins",), ("admit",), ("catalog", "--timeout", "0")):
        result = command(*wrong)
        assert result.returncode == 2, wrong
        assert "Traceback" not in result.stderr
    assert command("serve", "--config", good, "--workers", "0").returncode == 2
    assert "shared mode" in command("serve", "--config", good, "--workers", "2").stderr


def test_exit_codes_of_commands_that_speak_to_a_server(tmp_path: Path) -> None:
    with served(write(tmp_path)) as server:
        there = ("--server", server.address, "--token-file", server.token_file)
        expected = {
            ("verify", "--json"): 0,
            ("healthcheck",): 0,
            ("healthcheck", "--service", "tidegate.v1.AdmissionService"): 0,
            ("healthcheck", "--service", "no.Such"): 1,
            ("catalog", "--include-hidden", "--json"): 0,
            ("capacity", "--json"): 0,
            ("capacity", "--model", "managed/local"): 1,
            ("admit", "managed/local", "w"): 1,
            ("admit", "managed/none", "w"): 1,
            ("admit", "qwen/qwen-next"): 0,
            ("pins", "list", "--json"): 0,
            ("pins", "verify"): 0,
            ("pins", "show", "ab"): 1,
            ("pins", "retire", "--pin-id", "ab" * 32, "--reason", "x"): 1,
            ("pins", "retire", "--model", "managed/local", "--reason", "x", "--dry-run"): 0,
            ("capacity", "clear", "qwen", "--reason", "x"): 0,
            ("capacity", "clear", "nobody", "--reason", "x"): 1,
            ("capacity", "clear", "qwen", "--reason", "x", "--blocker", "NONSENSE"): 2,
            ("pins", "retire", "--reason", "x"): 2,
        }
        for arguments, code in expected.items():
            result = command(*arguments, *there)
            assert result.returncode == code, (arguments, result.stdout, result.stderr)
            assert "Traceback" not in result.stderr, arguments
        with server.client() as client:
            client.report_capacity("c", [HEALTHY])
            assert command("admit", "managed/local", "w", "--explain", *there).returncode == 0
        ready = json.loads(command("verify", "--json", *there).stdout)
        assert ready["ready"] is True
        assert ready["features"] == ["managed-worker-routing-v1", "flow-guard-v1", "agent-selection-v1"]
        wrong = tmp_path / "wrong.token"
        wrong.write_text("wrong")
        wrong.chmod(0o600)
        assert command("pins", "list", "--server", server.address, "--token-file", wrong).returncode == 1


def test_commands_without_a_server_answer_no_within_their_time(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        for arguments in (("verify", "--json"), ("healthcheck",), ("admit", "managed/local", "w"), ("pins", "list")):
            result = command(*arguments, "--server", nobody, "--timeout", "1")
            assert result.returncode == 1, arguments
            assert "Traceback" not in result.stderr
