"""Where the token is found, and where it is never sent."""

from pathlib import Path

import pytest
from tidegate import Connection, CredentialError, Tls, TokenFile, find_local_token
from tidegate.credentials import CHANNEL_OPTIONS, default_target, is_local


def token_in(path: Path, text: str = "secret\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_search_order(tmp_path: Path) -> None:
    local = token_in(tmp_path / "state/local.token")
    named = token_in(tmp_path / "named")
    explicit = token_in(tmp_path / "explicit")
    environ = {"TIDEGATE_TOKEN_FILE": str(named)}

    def found(explicit: Path | None, environ: dict[str, str]) -> Path | None:
        token = find_local_token(explicit, environ=environ, directory=tmp_path)
        return token.path if token else None

    assert found(explicit, environ) == explicit
    assert found(None, environ) == named
    assert found(None, {}) == local
    local.unlink()
    assert found(None, {}) is None


def test_a_named_file_that_is_missing_is_an_error_and_not_no_token(tmp_path: Path) -> None:
    token = find_local_token(tmp_path / "gone", environ={}, directory=tmp_path)
    assert token is not None
    with pytest.raises(CredentialError, match="gone"):
        token.read()


@pytest.mark.parametrize("text", ["", "\n", "two words", "bell\a", "ümlaut"])
def test_a_file_that_holds_no_token_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(CredentialError, match="holds no single token") as caught:
        TokenFile(token_in(tmp_path / "token", text)).read()
    assert not text.strip() or text.strip() not in str(caught.value)


def test_a_rotated_token_is_read_again(tmp_path: Path) -> None:
    token = TokenFile(token_in(tmp_path / "token", "one"))
    assert token.metadata() == (("authorization", "Bearer one"),)
    token_in(tmp_path / "token", "another")
    assert token.read() == "another"


@pytest.mark.parametrize(
    ("target", "local"),
    [
        ("127.0.0.1:50051", True),
        ("localhost:1", True),
        ("[::1]:50051", True),
        ("unix:/run/tidegate.sock", True),
        ("dns:///localhost:50051", True),
        ("10.0.0.1:50051", False),
        ("tidegate.example:443", False),
        ("127.0.0.1.example:443", False),
    ],
)
def test_what_counts_as_this_machine(target: str, local: bool) -> None:
    assert is_local(target) is local


def test_a_token_never_leaves_the_machine_in_clear(tmp_path: Path) -> None:
    token = TokenFile(token_in(tmp_path / "token"))
    with pytest.raises(CredentialError, match="needs TLS"):
        Connection("10.0.0.1:50051", token=token)
    assert Connection("10.0.0.1:50051", token=token, insecure=True).metadata()
    assert Connection("10.0.0.1:50051", tls=Tls(), token=token).metadata()


def test_a_remote_server_is_not_shown_the_local_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token_in(tmp_path / "state/local.token")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEGATE_TOKEN_FILE", raising=False)
    assert Connection.find("127.0.0.1:1").metadata()
    assert not Connection.find("10.0.0.1:1").metadata()


def test_a_token_that_a_server_makes_later_is_shown_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEGATE_TOKEN_FILE", raising=False)
    connection = Connection.find("127.0.0.1:1")
    assert connection.metadata() == ()
    token_in(tmp_path / "state/local.token")
    assert connection.metadata() == (("authorization", "Bearer secret"),)


def test_half_an_mtls_pair_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(CredentialError, match="belong together"):
        Tls(certificate="cert.pem").credentials()
    with pytest.raises(CredentialError, match="gone"):
        Tls(ca=tmp_path / "gone.pem").credentials()


def test_the_default_target_and_a_keepalive_that_the_server_accepts() -> None:
    assert default_target({}) == "127.0.0.1:50051"
    assert default_target({"TIDEGATE_SERVER": "unix:/s"}) == "unix:/s"
    assert int(dict(CHANNEL_OPTIONS)["grpc.keepalive_time_ms"]) >= 10_000
