"""Secrets of collectors: from the environment or a file, read again for each reading, never kept, logged or sent on."""

import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tidegate_collectors.payload import Malformed, decode

_SALT = secrets.token_bytes(16)
_MAX = 65_536


class SecretError(Exception):
    """A secret that cannot be had; the message names its place, never its text."""


class Secret(BaseModel):
    """Where one secret is: `env: NAME`, or `file: PATH`, with `member` the dotted name inside a JSON file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str = ""
    file: str = ""
    member: str = ""

    @model_validator(mode="after")
    def _one_place(self) -> "Secret":
        if bool(self.env) == bool(self.file):
            raise ValueError("name either env or file")
        if self.member and not self.file:
            raise ValueError("member needs file")
        return self

    def read(self, environ: Mapping[str, str] = os.environ) -> str:
        """Return the secret."""
        value = environ.get(self.env, "") if self.env else self._from_file()
        value = value.strip()
        if not value:
            raise SecretError(f"{self.place}: no secret there")
        if not value.isascii() or not value.isprintable():
            raise SecretError(f"{self.place}: holds what no header can carry")
        return value

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return (
            f"environment variable {self.env}"
            if self.env
            else f"file {self.file}{f' ({self.member})' if self.member else ''}"
        )

    def _from_file(self) -> str:
        try:
            with Path(self.file).expanduser().open("rb") as file:
                content = file.read(_MAX)
        except OSError as error:
            raise SecretError(f"{self.place}: {error.strerror}") from None
        if not self.member:
            return content.decode(errors="replace")
        try:
            node: object = decode(content)
        except Malformed as error:
            raise SecretError(f"{self.place}: {error}") from None
        for name in self.member.split("."):
            node = node.get(name) if isinstance(node, dict) else None
        if not isinstance(node, str):
            raise SecretError(f"{self.place}: no text of that name")
        return node


class Auth(BaseModel):
    """What a collector shows the provider: a bearer token, and headers of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bearer_env: str = ""
    bearer_file: str = ""
    bearer_member: str = ""
    """Dotted name inside a JSON file, e.g. `claudeAiOauth.accessToken`."""
    headers: dict[str, Secret] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _at_most_one_bearer(self) -> "Auth":
        if self.bearer_env and self.bearer_file:
            raise ValueError("name either bearer_env or bearer_file")
        return self

    def show(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the headers of one request."""
        shown = {name.lower(): secret.read(environ) for name, secret in self.headers.items()}
        if self.bearer_env or self.bearer_file:
            bearer = Secret(env=self.bearer_env, file=self.bearer_file, member=self.bearer_member)
            shown["authorization"] = f"Bearer {bearer.read(environ)}"
        return shown


def fingerprint(headers: Mapping[str, str]) -> str:
    """Return what tells one credential from another within this process, and nothing else about it."""
    text = "\0".join(f"{name}\0{headers[name]}" for name in sorted(headers))
    return hashlib.blake2b(text.encode(), key=_SALT, digest_size=16).hexdigest()
