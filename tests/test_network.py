"""Every client trusts a private authority and uses the proxy of the environment, over real TLS and a real proxy.

Libraries open no connections of their own.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
from pydantic import BaseModel

from gumshoe.artifacts.s3 import S3Storage
from gumshoe.artifacts.storage import Limits
from gumshoe.client.agent_client import AgentClient
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.notify import WEBHOOK, Outcome, send_notification
from gumshoe.embeddings.embedder import EndpointEmbedder
from gumshoe.endpoint import openai_client
from gumshoe.inference.vllm_policy import VLLMPolicy
from gumshoe.inference.vllm_server import check_server
from gumshoe.network import find_proxy, is_local_network, share_ca_bundle
from gumshoe.rewards.chat_judge import JudgeModel, JudgeModelSettings
from gumshoe.rollouts.chat_model import check_chat_server
from tests.certificates import CertificateAuthority
from tests.cluster.fake_kubernetes import write_kubeconfig
from tests.errors import raises
from tests.http_server import ReceivedRequest, run_faulty_server
from tests.private_network import ForwardProxy, forward_proxy, serve_tls

PUBLIC = "https://service.example.com"
"""A name that only the proxy knows."""
BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_LISTING = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name></ListBucketResult>'

_VERSION = (
    "major",
    "minor",
    "gitVersion",
    "gitCommit",
    "gitTreeState",
    "buildDate",
    "goVersion",
    "compiler",
    "platform",
)


class Verdict(BaseModel):
    score: int


@dataclass
class Service:
    """An HTTP server that answers each client, behind TLS."""

    url: str = ""
    authority: CertificateAuthority = field(default_factory=CertificateAuthority)
    received: list[str] = field(default_factory=list)

    def answer(self, request: ReceivedRequest, _: str) -> tuple[int, str, bytes]:
        self.received.append(request.path)
        if request.query.get("list-type"):
            return 200, "application/xml", _LISTING
        choice = {"index": 0, "message": {"role": "assistant", "content": '{"score": 1}'}, "finish_reason": "stop"}
        answers: dict[str, Any] = {
            "/v1/models": {"data": [{"id": "m", "max_model_len": 4096}]},
            "/v1/embeddings": {"data": [{"index": 0, "object": "embedding", "embedding": [1.0, 0.0]}]},
            "/version/": dict.fromkeys(_VERSION, "1"),
            "/api/models/acme/mail-model": {"id": "acme/mail-model"},
            "/v1/chat/completions": {"id": "1", "object": "chat.completion", "choices": [choice]},
        }
        return 200, "application/json", json.dumps(answers.get(request.path, {})).encode()


@pytest.fixture
def service(tmp_path: Path, aws_environment: pytest.MonkeyPatch) -> Iterator[Service]:
    found = Service()
    for name in (*BUNDLES, "SSL_CERT_DIR"):
        aws_environment.delenv(name, raising=False)
    with run_faulty_server(deque(), found.answer) as url, serve_tls(url, found.authority, tmp_path) as found.url:
        yield found


@pytest.fixture
def proxy(service: Service) -> Iterator[ForwardProxy]:
    with forward_proxy() as found:
        found.hosts["service.example.com:443"] = urlsplit(service.url).netloc
        yield found


def _ask_kubeflow(url: str) -> None:
    from gumshoe_pipelines.kubeflow_client import KubeflowClient, ServerAddress

    KubeflowClient(ServerAddress(url)).list_runs(1)


def _ask_kubernetes(url: str, **settings: str) -> None:
    """Use a kubeconfig without certificates."""
    with TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patched:
        patched.setenv("KUBECONFIG", str(write_kubeconfig(Path(place), url, **settings)))
        Cluster.of(None, None).check()


def _list_bucket(url: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", url)
        list(S3Storage("b", "", Limits(attempts=1)).entries())


def _ask_judge(url: str) -> None:
    settings = JudgeModelSettings(model="m", url=f"{url}/v1", cache=None)
    judge = JudgeModel(settings)

    async def ask() -> None:
        async with judge._client:
            await judge.ask("1", "system", lambda _: ("question", Verdict))

    asyncio.run(ask())


def _check_chat_model(url: str) -> None:
    async def check() -> None:
        async with openai_client(f"{url}/v1", retries=0) as client:
            await check_chat_server(client, "m")

    asyncio.run(check())


def _check_policy(url: str) -> None:
    async def check() -> None:
        async with VLLMPolicy([url], "m") as policy:
            await policy.check(1024)

    asyncio.run(check())


def _ask_agent(url: str) -> None:
    with AgentClient(url, retries=0) as client:
        client._send("/invoke", {})


def _fetch_signing_keys(url: str) -> None:
    from gumshoe.serving.token_access import SigningKeys

    asyncio.run(SigningKeys(f"{url}/keys")._fetch())


def _notify(url: str) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(WEBHOOK, f"{url}/hook")
        patched.setattr("gumshoe.cluster.notify._TRIES", 1)
        send_notification(Outcome("r", "s", "SUCCEEDED", None, "text"))


def _export_spans(url: str) -> None:
    """Export as the agent server does. The library uses requests, which does not read SSL_CERT_FILE."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    with patch.dict(os.environ, {"OTEL_EXPORTER_OTLP_ENDPOINT": url}):
        share_ca_bundle()
        exporter = OTLPSpanExporter()
        exporter.export([])
        exporter.shutdown()  # type: ignore[no-untyped-call]


def _find_hub_model(url: str) -> None:
    """Ask the hub at another address. Its library keeps one session with the certificates of the first request."""
    from huggingface_hub import close_session

    from gumshoe.artifacts.hub import find_model

    with pytest.MonkeyPatch.context() as patched:
        for name in ("huggingface_hub.constants.ENDPOINT", "huggingface_hub.hf_api.constants.ENDPOINT"):
            patched.setattr(name, url)
        patched.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        close_session()
        try:
            find_model("acme/mail-model", "config.json")
        finally:
            close_session()


RAISING: dict[str, Callable[[str], object]] = {
    "Kubeflow Pipelines": _ask_kubeflow,
    "Kubernetes": _ask_kubernetes,
    "S3": _list_bucket,
    "judge": _ask_judge,
    "chat model": _check_chat_model,
    "vLLM policy": _check_policy,
    "vLLM server": lambda url: check_server(url, 1024),
    "embeddings": lambda url: EndpointEmbedder("m", f"{url}/v1", attempts=1).embed(["text"], "query"),
    "agent server": _ask_agent,
    "hub": _find_hub_model,
}
"""Clients that raise an error if a request fails, by name."""
CLIENTS = {**RAISING, "webhook": _notify, "signing keys": _fetch_signing_keys, "spans": _export_spans}
clients = pytest.mark.parametrize("name", CLIENTS)


def trust(service: Service, place: Path, patched: pytest.MonkeyPatch) -> Path:
    bundle = place / "ca.pem"
    bundle.write_bytes(service.authority.certificate)
    patched.setenv("SSL_CERT_FILE", str(bundle))
    return bundle


@clients
def test_a_private_authority_is_trusted(
    name: str, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(service, tmp_path, monkeypatch)
    CLIENTS[name](service.url)
    assert service.received


@pytest.mark.parametrize("name", RAISING)
def test_an_unknown_authority_is_named_with_what_to_set(name: str, service: Service) -> None:
    with raises("network.untrusted-certificate", "SSL_CERT_FILE"):
        CLIENTS[name](service.url)
    assert service.received == []


def test_the_doctor_names_an_unknown_authority(service: Service) -> None:
    from gumshoe.cluster.preflight.external import check_kfp

    (found,) = check_kfp(service.url, 60, in_pod=False, reader=None)
    assert found.state == "problem"
    assert service.url in found.text
    assert "SSL_CERT_FILE" in found.remedy


def test_an_untrusted_webhook_causes_a_warning_without_its_address(
    service: Service, capfd: pytest.CaptureFixture[str]
) -> None:
    _notify(service.url)
    printed = capfd.readouterr()
    assert "SSL_CERT_FILE" in printed.err
    assert "/hook" not in printed.err + printed.out


@clients
def test_the_proxy_of_the_environment_is_used(
    name: str, service: Service, proxy: ForwardProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(service, tmp_path, monkeypatch)
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    CLIENTS[name](PUBLIC)
    assert service.received
    assert set(proxy.requested) == {"service.example.com:443"}


@clients
def test_hosts_in_no_proxy_are_reached_directly(
    name: str, service: Service, proxy: ForwardProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(service, tmp_path, monkeypatch)
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", "other.example.com,localhost")
    CLIENTS[name](service.url)
    assert service.received
    assert proxy.requested == []


def test_one_bundle_is_shared_with_libraries_that_read_other_variables(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = trust(service, tmp_path, monkeypatch)
    with patch.dict(os.environ):
        share_ca_bundle()
        assert {os.environ[name] for name in BUNDLES} == {str(bundle)}
    with patch.dict(os.environ, {"REQUESTS_CA_BUNDLE": "other.pem"}):
        share_ca_bundle()
        assert os.environ["REQUESTS_CA_BUNDLE"] == "other.pem", "a variable that is set stays"
        share_ca_bundle(bundle)
        assert {os.environ[name] for name in BUNDLES} == {str(bundle)}


def test_the_proxy_of_a_kubeconfig_wins(
    service: Service, proxy: ForwardProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(service, tmp_path, monkeypatch)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    _ask_kubernetes(PUBLIC, **{"proxy-url": proxy.url.replace("://", "://ann:pass%40word@")})
    assert proxy.requested == ["service.example.com:443"]
    assert proxy.credentials == ["ann:pass@word"]


def test_a_setting_of_boto3_wins_for_s3(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = trust(service, tmp_path, monkeypatch)
    other = tmp_path / "other.pem"
    other.write_bytes(CertificateAuthority().certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    _list_bucket(service.url)
    assert service.received


@pytest.mark.parametrize("content", [None, b"", b"not a certificate"])
def test_a_bundle_without_certificates_is_refused(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    place = tmp_path / "bundle.pem"
    if content is not None:
        place.write_bytes(content)
    done = run("--ca-bundle", place, "explain", "plugins.no-code")
    assert (done.status, done.code) == (2, "network.invalid-ca-bundle")
    monkeypatch.setenv("SSL_CERT_FILE", str(place))
    done = run("explain", "plugins.no-code")
    assert (done.status, done.code) == (2, "network.invalid-ca-bundle")
    assert str(place) in done.err


def test_options_set_certificates_and_proxy_of_a_command(
    service: Service, proxy: ForwardProxy, tmp_path: Path, run: Callable[..., Any]
) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(service.authority.certificate)
    asked = ("artifacts", "list", "adapters", "--store", "s3://bucket/store")
    with patch.dict(os.environ, {"AWS_ENDPOINT_URL": PUBLIC}):
        done = run("--ca-bundle", bundle, "--proxy", proxy.url, *asked)
    assert done.status == 0, done.err
    assert service.received
    assert set(proxy.requested) == {"service.example.com:443"}


@pytest.mark.parametrize("url", ["socks5://proxy:1080", "http://", "", "http://[x", "http://ann:secret@proxy:port"])
def test_a_proxy_that_is_not_a_url_is_refused(
    url: str, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("--proxy", url, "explain", "plugins.no-code")
    assert (done.status, done.code) == (2, "network.invalid-proxy")
    assert "secret" not in done.err
    if url:
        monkeypatch.setenv("HTTPS_PROXY", url)
        monkeypatch.delenv("https_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with raises("network.invalid-proxy", "HTTPS_PROXY"):
            find_proxy(PUBLIC)


def test_a_proxy_without_a_scheme_is_an_http_proxy(
    service: Service, proxy: ForwardProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It means http, as for curl and httpx."""
    trust(service, tmp_path, monkeypatch)
    address = proxy.url.removeprefix("http://")
    monkeypatch.setenv("HTTPS_PROXY", address)
    _ask_kubernetes(PUBLIC)
    _ask_kubernetes(PUBLIC, **{"proxy-url": address})
    assert proxy.requested == ["service.example.com:443"] * 2
    with raises("network.invalid-proxy", "socks5://proxy:1080"):
        _ask_kubernetes(PUBLIC, **{"proxy-url": "socks5://proxy:1080"})


def test_the_proxy_of_a_url_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    assert find_proxy(PUBLIC) is None
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:1")
    monkeypatch.setenv("NO_PROXY", "intern.example.com,.corp.example.com")
    found = {url: find_proxy(url) for url in (PUBLIC, "http://service.example.com", "https://a.corp.example.com/x")}
    assert list(found.values()) == ["http://proxy:1", None, None]
    monkeypatch.setenv("ALL_PROXY", "http://proxy:2")
    assert find_proxy("http://service.example.com") == "http://proxy:2"
    assert find_proxy("https://10.0.0.1:6443") == "http://proxy:1", "the API of a private cluster, as for kubectl"
    assert [find_proxy(each) for each in ("http://localhost:1", "http://ml-pipeline.kubeflow.svc:8888")] == [None] * 2


@pytest.mark.parametrize(
    ("url", "is_local"),
    [
        ("http://10.0.0.1:8000", True),
        ("http://[fd00::1]/v1", True),
        ("http://vllm:8000", True),
        ("http://vllm.gumshoe.svc:8000", True),
        ("http://ml-pipeline.kubeflow.svc.cluster.local:8888", True),
        ("https://localhost:1", True),
        ("https://8.8.8.8", False),
        ("https://models.example.com/v1", False),
        ("http://[::1", False),
    ],
)
def test_hosts_of_the_local_network_are_known(url: str, is_local: bool) -> None:
    assert is_local_network(url) is is_local


@pytest.mark.parametrize(("given", "is_silent"), [({}, True), ({"DO_NOT_TRACK": "0"}, False)])
def test_libraries_report_nothing_to_their_makers_unless_they_are_allowed_to(
    given: dict[str, str], is_silent: bool
) -> None:
    script = (
        "import gumshoe, os; from huggingface_hub import constants;"
        "print(os.environ['DO_NOT_TRACK'] == '1', constants.HF_HUB_DISABLE_TELEMETRY)"
    )
    silencing = ("DO_NOT_TRACK", "DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY")
    environment = {name: value for name, value in os.environ.items() if name not in silencing} | given
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == [str(is_silent)] * 2
