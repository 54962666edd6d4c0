"""`tidegate migrate`: all or nothing, once, in two phases, and never backwards."""

import asyncio
import json
from pathlib import Path

import pytest
from tidegate_server.cli import main
from tidegate_server.errors import UnsafeState
from tidegate_server.stores.postgres.migrate import migrate
from tidegate_server.stores.postgres.schema import known_migrations, schema_fault

from tests.support import servers
from tests.support.replicas import Place
from tests.support.shared_stores import open_durable


def test_each_migration_says_when_it_is_applied() -> None:
    known = known_migrations()
    assert [m.name for m in known] == sorted(m.name for m in known)
    assert {m.phase for m in known} == {"pre", "post"}
    assert len({m.name.split("_")[0] for m in known}) == len(known)


def test_what_a_version_may_work_on() -> None:
    pre = [m.name for m in known_migrations() if m.phase == "pre"]
    everything = [m.name for m in known_migrations()]
    assert schema_fault(pre) == schema_fault(everything) == schema_fault([*everything, "0099_pre_column"]) == ""
    assert "0099_post_drop" in schema_fault([*everything, "0099_post_drop"])
    assert pre[0] in schema_fault([])


async def test_the_server_runs_between_the_phases() -> None:
    server = servers.postgres()
    dsn = server.dsn(server.new_database())
    assert all("_pre_" in name for name in migrate(dsn, ["pre"]))
    await (await open_durable(dsn)).close()
    assert all("_post_" in name for name in migrate(dsn, ["post"]))
    await (await open_durable(dsn)).close()


async def test_of_many_at_once_one_migrates() -> None:
    server = servers.postgres()
    dsn = server.dsn(server.new_database())
    done = await asyncio.gather(*(asyncio.to_thread(migrate, dsn) for _ in range(5)))
    assert sorted(map(len, done)) == [0, 0, 0, 0, len(known_migrations())]


def test_a_newer_database_is_left_alone() -> None:
    server = servers.postgres()
    name = server.migrated_database()
    server.execute("INSERT INTO tidegate_migration (name) VALUES ('9999_pre_more')", name)
    with pytest.raises(UnsafeState, match="9999_pre_more"):
        migrate(server.dsn(name))


def test_a_failed_migration_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server = servers.postgres()
    name = server.new_database()
    broken = [m._replace(script="SELECT 1/0") if m.phase == "post" else m for m in known_migrations()]
    monkeypatch.setattr("tidegate_server.stores.postgres.migrate.known_migrations", lambda: broken)
    with pytest.raises(UnsafeState, match="22012"):
        migrate(server.dsn(name))
    assert server.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'tidegate%'", name) == [(0,)]


@pytest.mark.parametrize("statement", ["DELETE FROM tidegate_pin", "TRUNCATE tidegate_pin_audit"])
def test_nobody_deletes_pins_by_hand(statement: str) -> None:
    server = servers.postgres()
    name = server.migrated_database()
    with pytest.raises(Exception, match="never deleted"):
        server.execute(statement, name)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = servers.postgres()
    place = Place(tmp_path, durable=server.dsn(server.new_database()), live="valkey://127.0.0.1:1/0")
    config = str(place.write("a"))
    assert main(["migrate", "--config", config, "--phase", "pre", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["applied"]
    assert main(["migrate", "--config", config]) == 0
    assert "post" in capsys.readouterr().out
    assert main(["migrate", "--config", config]) == 0
    assert capsys.readouterr().out == "up to date\n"
    unreachable = Place(tmp_path, durable="postgresql://user:secret@127.0.0.1:1/db", live="valkey://127.0.0.1:1/0")
    assert main(["migrate", "--config", str(unreachable.write("b"))]) == 1
    told = capsys.readouterr().err
    assert "cannot be migrated" in told
    assert "secret" not in told
