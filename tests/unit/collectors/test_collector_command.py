"""`tidegate collector test` and its neighbours, from the outside: exit codes and what is printed."""

import json
from pathlib import Path

import pytest
import yaml
from tidegate_collectors.cli import main
from tidegate_collectors.presets import PRESETS

VECTORS = Path(__file__).parents[2] / "vectors/signals"
NOW = "2026-10-20T12:00:00Z"


def sample(name: str) -> str:
    return str(VECTORS / "samples" / name)


def test_a_sample_as_json_has_observations_facts_and_error(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["collector", "test", "--preset", "deepseek", "--provider", "ds", "--now", NOW, "--json", "--sample"]
    assert main([*arguments, sample("deepseek-balance-two-currencies.json")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["error"] is None
    assert [each["balance"]["currency"] for each in told["observations"]] == ["USD", "CNY"]
    assert {each["observeTime"] for each in told["observations"]} == {NOW}
    assert {each["ttl"] for each in told["observations"]} == {"300s"}
    assert [fact["amount"] for fact in told["facts"]] == ["0.00", "71.46"]


def test_an_error_tells_no_fact(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["collector", "test", "--preset", "openrouter", "--json", "--sample"]
    assert main([*arguments, sample("openrouter-credits-inference-key.json")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["observations"] == []
    assert "two zeros" in told["error"]


def test_expectations_decide_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["collector", "test", "--preset", "vllm", "--now", NOW, "--sample", sample("vllm-steady.prom")]
    assert main([*arguments, "--expect", str(VECTORS / "expected.json")]) == 0
    assert "as expected" in capsys.readouterr().out
    wrong = tmp_path / "facts.json"
    model = "Qwen/Qwen3-30B-A3B-Instruct"
    wrong.write_text(json.dumps([{"fact": "health", "target": "a", "model": model, "healthy": True, "running": 13}]))
    assert main([*arguments, "--expect", str(wrong)]) == 1
    assert "running: expected 13, got 12" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--preset", "vlm", "--sample", "x"],
        ["--preset", "vllm", "--sample", "/nowhere/at/all"],
        ["--preset", "vllm", "--sample", sample("vllm-steady.prom"), "--now", "noon"],
        ["--preset", "vllm", "--sample", sample("vllm-steady.prom"), "--now", "2026-10-20T12:00:00"],
        ["--preset", "vllm", "--sample", sample("vllm-steady.prom"), "--expect", sample("vllm-steady.prom")],
        ["--config", "/nowhere", "--sample", sample("vllm-steady.prom")],
    ],
)
def test_wrong_use_is_said_in_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collector", "test", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1


def test_a_mapping_of_a_file_is_tested_offline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mappings = yaml.safe_load((VECTORS / "generic.yaml").read_text())
    collectors = [case["collector"] for case in mappings if case["collector"]["id"] in ("codex", "deepseek-main")]
    file = tmp_path / "collectors.yaml"
    file.write_text(yaml.safe_dump({"collectors": collectors}))
    arguments = ["collector", "test", "--config", str(file), "--collector", "codex", "--now", NOW, "--json"]
    arguments += ["--expect", str(VECTORS / "expected.json")]
    assert main([*arguments, "--sample", sample("codex-usage-weekly-in-primary.json")]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []


def test_presets_are_listed_with_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collector", "presets", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [preset["name"] for preset in listed] == list(PRESETS)
    assert all(preset["reads"] and preset["cost"] for preset in listed)
    assert {preset["name"] for preset in listed if not preset["official"]} >= {"claude-usage", "codex-usage"}
    assert main(["collector", "presets"]) == 0
    assert "unofficial: true" in capsys.readouterr().out


def test_a_bad_file_is_refused_with_every_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "collectors.yaml"
    file.write_text("collectors:\n- {preset: vlm, provider: a}\n- {preset: openrouter, provider: b}\n")
    assert main(["collect", "--config", str(file)]) == 1
    assert capsys.readouterr().err.splitlines()[1].startswith("collectors[1].auth: ")
    file.write_text("collectors: [")
    assert main(["collect", "--config", str(file), "--json"]) == 1
    assert "not YAML at line 1" in json.loads(capsys.readouterr().out)["faults"][0]
