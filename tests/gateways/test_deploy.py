"""deploy/: linted, decoded by Kubernetes' own types, and true to the server that it deploys."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tidegate_server.config import Configuration
from tidegate_server.config.environment import MIRRORS
from tidegate_server.core.model import SECOND

from tests.conformance.clients import ROOT, go_binary
from tests.gateways.certificates import authority, signed
from tests.gateways.processes import free_address, tidegate
from tests.gateways.test_probes import probe

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted(path for path in (DEPLOY / "kubernetes").glob("*.yaml") if path.name != "kustomization.yaml")
BIN = Path(sys.prefix) / "bin"
Json = dict[str, Any]


def documents() -> dict[str, Json]:
    """Every object by its kind."""
    found = [each for path in MANIFESTS for each in yaml.safe_load_all(path.read_text())]
    return {each["kind"]: each for each in found}


@pytest.fixture
def objects() -> dict[str, Json]:
    """Every object by its kind."""
    return documents()


@pytest.fixture
def container(objects: dict[str, Json]) -> Json:
    """The one container."""
    (only,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(only)


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", str(DEPLOY / "Containerfile")],
        ["yamllint", "--strict", "-c", str(DEPLOY / ".yamllint.yaml"), str(DEPLOY)],
    ],
    ids=lambda command: command[0],
)
def test_linters(command: list[str]) -> None:
    done = subprocess.run([str(BIN / command[0]), *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_types_of_kubernetes_know_every_field() -> None:
    binary = go_binary(ROOT / "tests/gateways/tools", "./manifests", "manifests")
    done = subprocess.run([str(binary), *map(str, MANIFESTS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == set(documents())


def test_everything_is_named_and_selected_alike(objects: dict[str, Json]) -> None:
    kustomization = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())
    assert sorted(kustomization["resources"]) == [path.name for path in MANIFESTS]
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = {
        "Deployment": objects["Deployment"]["spec"]["selector"]["matchLabels"],
        "Service": objects["Service"]["spec"]["selector"],
        "PodDisruptionBudget": objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        "NetworkPolicy": objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    }
    for kind, selector in selectors.items():
        assert selector.items() <= labels.items(), kind
    monitored = objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= objects["Service"]["metadata"]["labels"].items()


def test_ports_are_those_of_the_configuration(objects: dict[str, Json], container: Json, configuration: Json) -> None:
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listens = {"grpc": configuration["listen"], "health": configuration["health"]["listen"]}
    listens["admin"] = configuration["admin"]["listen"]
    assert ports == {name: int(address.rpartition(":")[2]) for name, address in listens.items()}
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[kind]["grpc"]["port"] == ports["health"], kind
    for port in objects["Service"]["spec"]["ports"]:
        assert port["port"] == ports[port["targetPort"]]
    allowed = {port["port"] for rule in objects["NetworkPolicy"]["spec"]["ingress"] for port in rule["ports"]}
    assert allowed == {ports["grpc"], ports["admin"]}, "the kubelet needs no rule, and nobody else asks the health port"
    (endpoint,) = objects["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in objects["Service"]["spec"]["ports"]}


def test_what_is_mounted_is_what_the_configuration_names(objects: dict[str, Json], container: Json) -> None:
    text = objects["ConfigMap"]["data"]["tidegate.yaml"]
    places = [mount["mountPath"] for mount in container["volumeMounts"]]
    for file in [*re.findall(r"/etc/tidegate/[\w./]+", text), container["args"][-1]]:
        assert any(file == place or file.startswith(f"{place}/") for place in places), file
    keys = [mount for mount in container["volumeMounts"] if mount["name"] == "keys"]
    assert all(mount["subPath"] == Path(mount["mountPath"]).name for mount in keys), "a key is no symbolic link"
    assert {each["name"] for each in container["env"]} <= MIRRORS.keys()


def test_the_pod_ends_before_it_is_killed(objects: dict[str, Json], container: Json) -> None:
    drain = Configuration.model_fields["drain_grace"].default / SECOND
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause + drain < objects["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


def test_the_image_is_who_the_pod_says(objects: dict[str, Json]) -> None:
    text = (DEPLOY / "Containerfile").read_text()
    context = objects["Deployment"]["spec"]["template"]["spec"]["securityContext"]
    assert f"\nUSER {context['runAsUser']}:{context['runAsGroup']}\n" in text
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source


def test_the_servers_own_configuration_serves_and_answers_the_probes(
    configuration: Json, container: Json, tmp_path: Path
) -> None:
    """With the files and ports of this machine, and embedded stores."""
    certificate = signed(authority(tmp_path), tmp_path, "server", "DNS:tidegate.tidegate.svc")
    configuration["tls"] = {"certificate": str(certificate.certificate), "key": str(certificate.key)}
    del configuration["keys"]
    for section in ("health", "admin"):
        configuration[section]["listen"] = free_address()
    with tidegate(configuration, tmp_path):
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            said = probe(configuration["health"]["listen"], container[kind]["grpc"]["service"])
            assert said.code == 0, (kind, said.text)


@pytest.fixture
def configuration(objects: dict[str, Json]) -> Json:
    """What the ConfigMap holds."""
    found: Json = yaml.safe_load(objects["ConfigMap"]["data"]["tidegate.yaml"])
    return found
