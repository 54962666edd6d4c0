"""What docs/envoy.md shows works: its snippets are taken from the text and run."""

import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import yaml
from tidegate_server.envoy import asking

from tests.gateways.envoy_proxy.filters import manager, processing
from tests.gateways.envoy_proxy.support import ENVOY, EXAMPLE, World, engine, example

TEXT = (EXAMPLE.parents[1] / "envoy.md").read_text()
SNIPPETS: list[Any] = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]
PROVIDER, SECRET, MODE, IDENTITY = SNIPPETS


def accepted(document: Any, directory: Path) -> None:
    """Envoy takes the configuration."""
    file = directory / "envoy.yaml"
    file.write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [str(ENVOY), "--mode", "validate", "-c", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def with_provider(secret: Path) -> Any:
    """The example with the provider of the text."""
    document = example()
    cluster = yaml.safe_load(yaml.safe_dump(PROVIDER["cluster"]).replace("/etc/envoy/openrouter-key.yaml", str(secret)))
    document["static_resources"]["clusters"].append(cluster)
    manager(document)["route_config"]["virtual_hosts"][0]["routes"].insert(0, PROVIDER["route"])
    return document


def test_the_snippets_are_valid(tmp_path: Path) -> None:
    secret = tmp_path / "key.yaml"
    secret.write_text(yaml.safe_dump(SECRET))
    document = with_provider(secret)
    processing(document).update(MODE)
    processing(document).update(IDENTITY)
    accepted(document, tmp_path)


def test_a_provider_gets_its_own_key_host_and_path(tmp_path: Path) -> None:
    secret = tmp_path / "key.yaml"
    secret.write_text(yaml.safe_dump(SECRET).replace("sk-…", "sk-provider").replace("sk-\\u2026", "sk-provider"))
    document = with_provider(secret)
    (cluster,) = [c for c in document["static_resources"]["clusters"] if c["name"] == "openrouter"]
    cluster["type"] = "STATIC"  # on loopback, without names and TLS
    del cluster["transport_socket"]
    models = {"deepseek/deepseek-v4-flash": {"contextWindow": 163840}}
    paid = {"kind": "paid", "credential": "env:OPENROUTER_API_KEY", "models": models}
    providers = {**example("tidegate.yaml")["providers"], "openrouter": paid}
    with engine() as provider:
        endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
        endpoint["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 443}
        with World.start(tmp_path, document, {443: provider.port}, providers=providers) as world:
            answer = httpx.post(
                world.url + "/v1/chat/completions",
                content=b'{"model":"openrouter/deepseek/deepseek-v4-flash"}',
                headers={"authorization": "Bearer callers", "thread-id": "t"},
                timeout=30,
            )
            assert answer.status_code == 200, answer.text
            (got,) = provider.requests
            assert got.path == "/api/v1/chat/completions"
            assert got.headers["authorization"] == "Bearer sk-provider"
            assert got.headers["host"] == "openrouter.ai"
            assert got.body == b'{"model":"deepseek/deepseek-v4-flash"}'
            assert not world.calls()


def test_the_table_names_every_header_that_is_read() -> None:
    for name in (*asking.WORKER, *asking.INPUTS):
        assert f"`{name}" in TEXT, name
