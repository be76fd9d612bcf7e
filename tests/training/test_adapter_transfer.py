"""The transfer of a step's adapter to other machines, with a real store, real loaders and fake vLLM servers."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gumshoe.artifacts.adapter_layout import ADAPTERS, STATUS
from gumshoe.artifacts.store import Store
from gumshoe.cluster.adapter_loader import AdapterLoader, PollInterval
from gumshoe.cluster.adapter_loader_http import serve_status
from gumshoe.training.launch.adapter_transfer import AdapterTransfer, check_adapter_transfer
from tests.cluster.conftest import PACE, overwrite
from tests.conftest import find_free_port
from tests.errors import raises
from tests.inference.fake_vllm import FakeVLLM, stall
from tests.waiting import wait_until

if TYPE_CHECKING:
    from gumshoe.training.grpo.sampler import RemoteVLLMSampler

HOSTS = "127.0.0.1", "127.0.0.2", "127.0.0.3"


def save_adapter(place: str) -> None:
    """Save an adapter whose content is its name."""
    Path(place).mkdir(parents=True)
    (Path(place) / "adapter_config.json").write_text(json.dumps({"r": 8}))
    (Path(place) / "adapter_model.safetensors").write_bytes(Path(place).name.encode() * 100)


MODEL = SimpleNamespace(save_pretrained=save_adapter)


def never() -> bool:
    return False


@dataclass
class Cluster:
    """Servers with their loaders, each on its own host, like the pods of a headless service."""

    uri: str
    place: Path
    addresses: list[str]
    """The IP addresses of the service's name."""
    port: int
    loader_port: int

    @contextmanager
    def pod(self, host: str, *, with_loader: bool = True, pace: PollInterval = PACE) -> Iterator[FakeVLLM]:
        """Run a server with its loader, and add its address to the service's, while the block runs."""
        ended = threading.Event()
        with ExitStack() as stack:
            vllm = stack.enter_context(FakeVLLM(models=("base",), host=host, port=self.port))
            if with_loader:
                loader = AdapterLoader(self.uri, vllm.address, self.place / host, pace)
                stack.enter_context(loader)
                stack.enter_context(serve_status(loader, host, self.loader_port))
                thread = threading.Thread(target=loader.run, args=(ended,))
                thread.start()
                stack.callback(thread.join)
                stack.callback(ended.set)
            self.addresses.append(host)
            stack.callback(self.addresses.remove, host)
            yield vllm

    def has_reported(self, host: str, text: str) -> Callable[[], bool]:
        """Return a function that is True if a host's loader reported a text at an earlier call."""
        reports: list[bool] = []

        def reported() -> bool:
            answer = httpx.get(f"http://{host}:{self.loader_port}{STATUS}", timeout=None, trust_env=False)
            reports.append(text in answer.text)
            return any(reports[:-1])

        return reported

    def sampler(self, directory: Path) -> "RemoteVLLMSampler":
        """Make a sampler with a deadline of an hour."""
        from gumshoe.training.grpo.sampler import RemoteVLLMSampler

        chat: Any = None  # no session is opened
        transfer = AdapterTransfer(self.uri, (f"http://rollout.test:{self.port}",), 1000, 3600.0, self.loader_port)
        return RemoteVLLMSampler(transfer, chat, 1000, directory)


@pytest.fixture
def cluster(s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return a cluster without pods; samplers poll often."""
    monkeypatch.setattr("gumshoe.training.launch.adapter_transfer._PAUSE", 0.02)
    addresses: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *arguments: Any, **named: Any) -> Any:  # instead of a cluster's DNS
        if host != "rollout.test":
            return real(host, port, *arguments, **named)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [found for each in addresses for found in real(each, port, *arguments, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return Cluster(
        f"s3://{s3_bucket}/runs/r1/policies", tmp_path / "pods", addresses, find_free_port(), find_free_port()
    )


@pytest.mark.ci
def test_all_servers_serve_an_adapter_before_it_is_used(cluster: Cluster, tmp_path: Path) -> None:
    sampler = cluster.sampler(tmp_path)
    with cluster.pod(HOSTS[0]) as one, cluster.pod(HOSTS[1]) as two:
        for step in range(4):
            sampler.publish(MODEL, f"r1-1-policy-{step}", never)
            assert sampler.version == f"r1-1-policy-{step}"
            for each in (one, two):
                assert each.loaded[-1] == (sampler.version, sampler.version.encode() * 100)
        assert list(sampler.urls) == [one.address, two.address]
        assert list((tmp_path / "adapters").iterdir()) == []
        store = Store(cluster.uri)
        assert [each.version for each in store.list(ADAPTERS)] == ["r1-1-policy-2", "r1-1-policy-3"]
        assert store.latest(ADAPTERS) == "r1-1-policy-3"

        again = cluster.sampler(tmp_path)  # of a restarted trainer
        again.publish(MODEL, "r1-2-policy-3", never)
        wait_until(lambda: [list(each.roots) for each in (one, two)] == [["r1-1-policy-3", "r1-2-policy-3"]] * 2)


@pytest.mark.ci
def test_servers_come_and_go(cluster: Cluster, tmp_path: Path) -> None:
    sampler = cluster.sampler(tmp_path)
    with cluster.pod(HOSTS[1]) as stays:
        with cluster.pod(HOSTS[0]):
            sampler.publish(MODEL, "p-0", never)
            assert len(sampler.urls) == sampler.servers == 2
        sampler.publish(MODEL, "p-1", never)
        assert list(sampler.urls) == [f"http://rollout.test:{cluster.port}"], (
            "the name also finds a server that replaces it"
        )
        with cluster.pod(HOSTS[2], with_loader=False) as starting:  # it serves nothing yet
            sampler.publish(MODEL, "p-2", never)
            assert list(sampler.urls) == [stays.address]
            assert starting.loaded == []
        with cluster.pod(HOSTS[2]) as joins:
            wait_until(lambda: "p-2" in joins.roots)
            sampler.publish(MODEL, "p-3", never)
            assert list(sampler.urls) == [stays.address, joins.address]


@pytest.mark.ci
def test_servers_that_are_too_slow_are_reported_with_their_loaders(cluster: Cluster, tmp_path: Path) -> None:
    sampler = cluster.sampler(tmp_path)
    with raises("training.adapter-not-served", f"http://rollout.test:{cluster.port} has no address"):
        sampler.publish(MODEL, "p-0", lambda: True)
    assert sampler.version == "", "no episode may use it"
    impatient = cluster.pod(HOSTS[1], pace=replace(PACE, load_timeout=0.5))  # its server hangs
    with cluster.pod(HOSTS[0]), impatient as slow, cluster.pod(HOSTS[2], with_loader=False):
        slow.load = stall
        serves = cluster.has_reported(HOSTS[0], '"serving": "p-1"')
        hangs = cluster.has_reported(HOSTS[1], slow.address)
        with raises("training.adapter-not-served", "p-1") as raised:
            sampler.publish(MODEL, "p-1", lambda: all([serves(), hangs()]))
    message = raised.value.message
    assert HOSTS[0] not in message
    assert message.count(slow.address) == 2, "the server, and its loader's report"
    assert f"http://{HOSTS[2]}:{cluster.port}: " in message
    assert f"http://{HOSTS[2]}:{cluster.loader_port}{STATUS}: " in message, "there is no loader"


def test_a_corrupted_adapter_is_not_loaded(cluster: Cluster, tmp_path: Path) -> None:
    sampler = cluster.sampler(tmp_path)
    with cluster.pod(HOSTS[0]) as vllm:
        sampler.publish(MODEL, "p-0", never)
        save_adapter(str(tmp_path / "p-1"))
        store = Store(cluster.uri)
        found = store.publish(tmp_path / "p-1", ADAPTERS, "p-1", latest=False).manifest
        overwrite(store, f"{found.reference}/{found.data}/adapter_model.safetensors", b"p-2" * 100, tmp_path)
        with raises("training.adapter-not-served", "p-1", "adapter_model.safetensors"):
            sampler.publish(MODEL, "p-1", cluster.has_reported(HOSTS[0], "adapter_model.safetensors"))
        assert list(vllm.roots) == ["p-0"], "the previous adapter stays"


def test_a_rejected_adapter_fails_at_once(cluster: Cluster, tmp_path: Path) -> None:
    sampler = cluster.sampler(tmp_path)
    with cluster.pod(HOSTS[0]) as vllm:
        vllm.max_lora_rank = 4
        with raises("inference.adapter-rejected", vllm.address, "rank 8", "max_lora_rank 4"):
            sampler.publish(MODEL, "p-0", never)


def test_a_stopping_run_does_not_wait(cluster: Cluster, tmp_path: Path) -> None:
    asked = count(1)
    with raises("training.adapter-not-served", f"http://rollout.test:{cluster.port} has no address"):
        cluster.sampler(tmp_path).publish(MODEL, "p-0", lambda: next(asked) == 3)
    assert next(asked) == 4, "it stops polling"


def test_a_server_with_a_smaller_context_is_rejected(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.pod(HOSTS[0]) as vllm:
        vllm.max_model_len = 999
        with raises("inference.context-too-small", vllm.address, "999 tokens", "1000"):
            cluster.sampler(tmp_path).publish(MODEL, "p-0", never)


def test_a_store_with_another_newest_adapter_is_rejected(cluster: Cluster, tmp_path: Path) -> None:
    store = Store(cluster.uri)
    save_adapter(str(tmp_path / "made"))
    store.publish(tmp_path / "made", ADAPTERS, "r9-1-policy-7")
    pointer = json.dumps({"version": "r9-1-policy-7", "created": "2999-01-01T00:00:00+00:00"}).encode()
    overwrite(store, f"{ADAPTERS}/latest.json", pointer, tmp_path)
    with raises("training.adapter-store-shared", cluster.uri, "r9-1-policy-7 instead of p-0"):
        cluster.sampler(tmp_path).publish(MODEL, "p-0", never)


def test_an_unusable_store_is_reported_early(s3_bucket: str) -> None:
    check_adapter_transfer(f"s3://{s3_bucket}/policies")
    with raises("store.no-such-bucket", f"{s3_bucket}-not"):
        check_adapter_transfer(f"s3://{s3_bucket}-not/policies")


def test_episodes_use_the_servers_that_serve_the_adapter(cluster: Cluster, tmp_path: Path) -> None:
    from gumshoe.inference.policy import Sampling
    from gumshoe.inference.vllm_policy import VLLMPolicy

    sampler = cluster.sampler(tmp_path)

    async def ask() -> list[str]:
        async with VLLMPolicy(sampler.urls, sampler.version) as policy:
            samples = [policy.sample([1, 2, 3], Sampling(max_tokens=2), stop_ids=[258], seed=1) for _ in range(4)]
            return [each.version for each in await asyncio.gather(*samples)]

    with cluster.pod(HOSTS[0]) as one, cluster.pod(HOSTS[1]) as two:
        sampler.publish(MODEL, "p-0", never)
        assert asyncio.run(ask()) == ["p-0"] * 4
        assert one.requests
        assert two.requests
