"""Reloading: whole or not at all, the last good configuration stays."""

import os
from pathlib import Path

import pytest
from tidegate_server.config import ConfigurationSource
from tidegate_server.core.model import SECOND
from tidegate_server.errors import ConfigurationError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tidegate.yaml"
    path.write_text("coldWait: 1s\n")
    return path


def stands_changed(source: ConfigurationSource) -> bool:
    """Whether a change is seen: not at the first look, for it may still be written, but at the second."""
    return not source.changed() and source.changed()


def test_a_file_that_is_being_written_is_not_read(path: Path) -> None:
    source = ConfigurationSource(path, {})
    for half in ("", "coldWait", "coldWait: 2s\nproviders:", "coldWait: 2s\nproviders: {}\n"):
        path.write_text(half)
        assert not source.changed()
    assert source.changed()
    assert source.reload()


@pytest.mark.parametrize("empty", ["", "\n", "# nothing\n", "null\n", "---\n"])
def test_an_empty_file_is_no_configuration(path: Path, empty: str) -> None:
    source = ConfigurationSource(path, {})
    path.write_text(empty)
    assert not source.reload()
    assert "empty" in source.error
    assert source.configuration.cold_wait == SECOND


def test_a_good_change_is_taken_over_whole(path: Path) -> None:
    source = ConfigurationSource(path, {})
    first = source.loaded
    assert (source.generation, source.error, source.changed()) == (1, "", False)
    path.write_text("coldWait: 2500ms\n")
    assert stands_changed(source)
    assert source.reload()
    assert not source.changed()
    assert (source.generation, source.policy.cold_wait) == (2, 2_500_000_000)
    assert source.revision != first.policy.revision
    assert first.policy.cold_wait == SECOND, "who holds the old one keeps it whole"


def test_the_same_configuration_in_other_words_is_no_new_generation(path: Path) -> None:
    source = ConfigurationSource(path, {})
    before = source.loaded
    path.write_text("# a comment\ncoldWait: 1.0s\n")
    assert source.reload()
    assert source.generation == 1
    assert source.loaded is before


def test_a_bad_change_leaves_the_last_good_one(path: Path) -> None:
    source = ConfigurationSource(path, {})
    before = source.loaded
    path.write_text("coldWait: 2\nflow: {maxDepth: 0}\n")
    assert source.reload() is False
    assert source.loaded is before
    assert source.generation == 1
    assert [line.partition(":")[0] for line in source.error.splitlines()] == ["coldWait", "flow.maxDepth"]
    assert not source.changed(), "a bad file is tried once, not at every look"
    path.write_text("coldWait: 3s\n")
    assert stands_changed(source)
    assert source.reload()
    assert (source.generation, source.error) == (2, "")


def test_a_lost_file_leaves_the_last_good_one(path: Path) -> None:
    source = ConfigurationSource(path, {})
    path.unlink()
    assert stands_changed(source)
    assert source.reload() is False
    assert "cannot be read" in source.error
    path.write_text("coldWait: 1s\n")
    assert stands_changed(source)
    assert source.reload()
    assert source.error == ""


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("listen: 127.0.0.1:1", "listen"),
        ("insecure: true", "insecure"),
        ("reflection: false", "reflection"),
        ("stateDirectory: /elsewhere", "stateDirectory"),
        ("stores: {durable: 'postgresql://h/d', live: 'redis://h'}\nkeys: {pins: a, tracestate: [b]}", "stores"),
        ("keys: {pins: a}", "keys.pins"),
        ("admin: {listen: 127.0.0.1:1}", "admin"),
        ("health: {listen: 127.0.0.1:1}", "health"),
        ("tls: {certificate: c, key: k}", "tls"),
        ("limits: {maxMessageBytes: 1024}", "limits.maxMessageBytes"),
        ("limits: {maxConcurrentCalls: 1}", "limits.maxConcurrentCalls"),
        ("decisionLog: {queue: 1}", "decisionLog.queue"),
    ],
)
def test_what_needs_a_restart_refuses_the_reload_as_a_whole(path: Path, text: str, setting: str) -> None:
    source = ConfigurationSource(path, {})
    before = source.loaded
    path.write_text(f"{text}\ncoldWait: 9s\n")
    assert source.reload() is False
    assert source.loaded is before
    assert f"{setting}: is changed, which needs a restart" in source.error.splitlines()


def test_a_file_replaced_by_another_of_the_same_size_and_time_is_a_change(path: Path) -> None:
    source = ConfigurationSource(path, {})
    status = path.stat()
    other = path.with_suffix(".new")
    other.write_text("coldWait: 2s\n")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)
    assert stands_changed(source)


def test_the_environment_and_the_options_of_the_start_stay(path: Path) -> None:
    environment = {"TIDEGATE_FLOW_MAX_DEPTH": "7"}
    source = ConfigurationSource(path, environment, listen=["127.0.0.1:1"], state_directory="/s")
    environment.clear()
    path.write_text("flow: {maxDepth: 2}\nlisten: 127.0.0.1:2\ncoldWait: 4s\n")
    assert source.reload(), source.error
    c = source.configuration
    assert (c.flow.max_depth, str(c.listen[0]), c.state_directory, c.cold_wait) == (
        7, "127.0.0.1:1", Path("/s"), 4 * SECOND
    )  # fmt: skip


def test_the_first_load_raises(path: Path) -> None:
    path.write_text("coldWait: 2\n")
    with pytest.raises(ConfigurationError):
        ConfigurationSource(path, {})
