"""Test that the chart's pods trust a private authority and use a proxy, with real servers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from gumshoe.artifacts.store import Store
from tests.certificates import CertificateAuthority
from tests.charts.test_agent_chart import CHART, merge, render, settings_of, values_of
from tests.charts.test_platforms import AGENT, pods_of
from tests.inference.fake_vllm import FakeVLLM
from tests.otlp_collector import run_collector
from tests.private_network import ForwardProxy, forward_proxy, serve_tls
from tests.serving.agent_server import ANN, ServerFiles, add_key, make_files, start_server

S3 = "https://s3.example.com"
VARIABLES = {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"}
PROXY = "http://proxy.example.com:3128"


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def containers_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


@pytest.mark.parametrize(
    ("bundle", "source"),
    [
        ({"configMap": "company"}, {"configMap": {"name": "company"}}),
        ({"secret": "company", "key": "ca-bundle.crt"}, {"secret": {"secretName": "company", "defaultMode": 0o444}}),
    ],
)
def test_every_container_trusts_the_bundle(bundle: dict[str, str], source: dict[str, Any]) -> None:
    key = bundle.get("key", "ca.crt")
    for pod in pods_of(render(merge(values_of("standard"), {"trust": {"caBundle": bundle}}))):
        (volume,) = [each for each in pod["spec"]["volumes"] if each["name"] == "trust"]
        ((kind, given),) = source.items()
        assert volume == {"name": "trust", kind: {**given, "items": [{"key": key, "path": key}]}}
        for container in containers_of(pod):
            (mount,) = [each for each in container["volumeMounts"] if each["name"] == "trust"]
            environment = environment_of(container)
            assert {environment[each] for each in VARIABLES} == {f"{mount['mountPath']}/{key}"}


def test_every_container_uses_the_proxy_except_for_services_and_metadata() -> None:
    proxy = {"https": PROXY, "noProxy": [".example.internal"]}
    for pod in pods_of(render(merge(values_of("standard"), {"proxy": proxy}))):
        for container in containers_of(pod):
            environment = environment_of(container)
            assert (environment["HTTPS_PROXY"], "HTTP_PROXY" in environment) == (PROXY, False)
            excluded = set(environment["NO_PROXY"].split(","))
            assert {".svc", ".cluster.local", "169.254.169.254", "169.254.170.23", ".example.internal"} < excluded


def test_without_bundle_and_proxy_nothing_is_set() -> None:
    for pod in pods_of(render(values_of("standard"))):
        assert "trust" not in [each["name"] for each in pod["spec"].get("volumes", [])]
        for container in containers_of(pod):
            names = {each["name"] for each in container["env"]}
            assert not names & (VARIABLES | {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"})


@dataclass
class PrivateNetwork:
    """vLLM and a collector of traces on this machine, and S3 behind a proxy, with a private authority."""

    vllm: str
    traces: str
    received: list[bytes]
    """Bodies of the requests that the collector has received."""
    bundle: Path
    proxy: ForwardProxy

    def render(self, store: str) -> dict[tuple[str, str], Any]:
        """Return the chart's objects for it."""
        changes = {
            "serving": {"external": {"urls": [self.vllm]}},
            "adapter": {"name": "adapter"},
            "agent": {"store": store, "storage": {"endpoint": S3}},
            "trust": {"caBundle": {"configMap": "company", "key": self.bundle.name}},
            "proxy": {"http": self.proxy.url, "https": self.proxy.url},
            "monitoring": {"otlpEndpoint": self.traces},
        }
        return render(merge(values_of("external"), changes))

    def environment(self, container: dict[str, Any]) -> dict[str, str]:
        """Return the environment of a container, with the bundle's path on this machine."""
        (mount,) = [each["mountPath"] for each in container["volumeMounts"] if each["name"] == "trust"]
        given = environment_of(container)
        return {name: value.replace(mount, str(self.bundle.parent)) for name, value in given.items()}


@pytest.fixture
def private(s3_server: str, tmp_path: Path) -> Iterator[PrivateNetwork]:
    authority = CertificateAuthority()
    bundle = tmp_path / "trust" / "ca-bundle.crt"
    bundle.parent.mkdir()
    bundle.write_bytes(authority.certificate)
    with (
        FakeVLLM(models=("adapter",)) as model,
        serve_tls(model.address, authority, tmp_path) as vllm,
        serve_tls(s3_server, authority, tmp_path) as s3,
        run_collector() as (collector, received),
        serve_tls(collector, authority, tmp_path) as traces,
        forward_proxy() as proxy,
    ):
        proxy.hosts["s3.example.com:443"] = s3.removeprefix("https://")
        yield PrivateNetwork(vllm, traces, received, bundle, proxy)


@pytest.mark.ci
def test_the_index_is_fetched_and_questions_are_answered_in_a_private_network(
    private: PrivateNetwork, s3_bucket: str, tmp_path: Path
) -> None:
    files, store = make_files(tmp_path / "files"), f"s3://{s3_bucket}/project"
    Store(store).publish(files.index, "mail-indexes", "1")
    objects = private.render(store)
    pod = objects[AGENT]["spec"]["template"]["spec"]
    (fetch,), (agent,) = pod["initContainers"], pod["containers"]
    (script,) = fetch["args"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, **private.environment(fetch), "PATH": path}
    command = [*fetch["command"], script.replace("/data/", f"{tmp_path}/data/")]

    public = {**given, **dict.fromkeys(VARIABLES, "")}
    assert subprocess.run(command, env=public, capture_output=True, check=False).returncode != 0
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(private.proxy.requested) == {"s3.example.com:443"}

    key = add_key(tmp_path / "keys", "test", [ANN])
    policy, log = settings_of(objects)["model"]["policy"], tmp_path / "log"
    fetched = ServerFiles(tmp_path / "data" / "index", files.tokenizer)
    with (
        patch.dict(os.environ, private.environment(agent)),
        start_server(fetched, policy, log, "--keys", str(tmp_path / "keys"), key=key) as server,
    ):
        assert server.ask().json()["success"] is True
        test = private.environment(pods_of(objects)[1]["spec"]["containers"][0])
        test |= {"AGENT": server.url, "KEY": key, "INBOX": ANN, "QUESTION": "What is in 7?", "ENVIRONMENT": "email"}
        ran = subprocess.run(
            [sys.executable, str(CHART / "files" / "test.py")], env=test, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
    assert b"gumshoe-agent" in b"".join(private.received)
    assert set(private.proxy.requested) == {"s3.example.com:443"}
