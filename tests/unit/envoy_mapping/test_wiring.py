"""The services are there with the extra, and the server is whole without it."""

import importlib.util
from typing import Any

import grpc
import pytest
from tidegate_server.wiring import envoy


def test_without_the_extra_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        assert name == "envoy.service.ext_proc.v3"
        raise ModuleNotFoundError(name)

    nothing: Any = None
    monkeypatch.setattr(envoy, "find_spec", missing)
    assert envoy.add_envoy_services(nothing, nothing, nothing, nothing) == []


async def test_with_the_extra_both_are_served() -> None:
    assert importlib.util.find_spec("envoy.service.ext_proc.v3") is not None
    guard: Any = type("Guard", (), {"counted": None})
    nothing: Any = None
    names = envoy.add_envoy_services(grpc.aio.server(), nothing, nothing, guard)
    assert names == ["envoy.service.ext_proc.v3.ExternalProcessor", "envoy.service.auth.v3.Authorization"]
