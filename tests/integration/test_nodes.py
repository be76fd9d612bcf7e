"""Training on several nodes with vLLM servers, as a pipeline step runs it on a cluster.

The cluster is fake, but its pods run real processes on this machine: two trainers of one run, two vLLM servers, and a
loader beside each. Pods have loopback addresses, to which the name of a headless Service resolves once they are ready.
Each trainer has a private temporary directory. The store is S3.
"""

import json
import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gumshoe.artifacts.adapter_layout import ADAPTERS, LOADER_PORT, SERVER_PORT, STATUS
from gumshoe.artifacts.store import Store
from gumshoe.cluster.kubernetes_api import Cluster
from gumshoe.cluster.object_client import Timeouts
from gumshoe.cluster.trainjob import ADAPTERS as ADAPTER_DIRECTORY
from gumshoe.cluster.trainjob import build_job_name
from gumshoe.mail.build import build_mail_index
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.synthesis.mailboxes import synthesize_mail, write_mail
from gumshoe.training.train_request import TrainRequest
from tests.cluster.fake_kubernetes import FakeKubernetes, Object
from tests.cluster.fake_trainer import Trainer
from tests.conftest import find_free_port

NODES, SERVERS, STEPS = 2, 2, 2
SETTINGS = {
    "model.max_context": 4096,
    "model.gradient_checkpointing": False,
    "lora.rank": 8,
    "rollouts.num_generations": 4,
    "rollouts.draws": 1,
    "rollouts.max_turns": 3,
    "rollouts.max_tokens": 60,
    "optimizer.max_steps": STEPS,
    "optimizer.per_device_train_batch_size": 4,
    "optimizer.gradient_accumulation_steps": 1,
    "evaluation.eval_steps": STEPS,
    "evaluation.baseline": False,
    "output.save_steps": 1,
    "output.report_to": [],
}
NAMES = """\
import os, socket
from pathlib import Path

real = socket.getaddrinfo


def resolved(host, *others, **named):
    name = host.decode() if isinstance(host, bytes) else host
    if not name or not name.endswith("-rollout"):
        return real(host, *others, **named)
    ready = Path(os.environ["READY"]).read_text().split()
    if not ready:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return [each for address in ready for each in real(address, *others, **named)]


socket.getaddrinfo = resolved
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Write an index of synthetic mail, and a few questions."""
    write_mail(synthesize_mail(8, 4, 200, "plain"), tmp_path)
    build_mail_index([f"jsonl:{tmp_path / 'mail.jsonl'}"], tmp_path / "index")
    every = load_scenarios(str(tmp_path / "scenarios.jsonl"))
    few = [*every.only("train").scenarios[:8], *every.only("validation").scenarios[:2]]
    (tmp_path / "questions").mkdir()
    (tmp_path / "questions" / "scenarios.jsonl").write_bytes(ScenarioSet.of(few).to_jsonl())
    return tmp_path


def get(url: str) -> httpx.Response:
    return httpx.get(url, trust_env=False, timeout=60)


@dataclass
class Pod:
    """A pod for rollouts: a vLLM server and a loader."""

    address: str
    processes: list["subprocess.Popen[bytes]"]
    log: Path
    loaded: int = 0
    answered: float = 0
    """Number of requests answered before the end."""

    def is_ready(self) -> bool:
        pages = f":{SERVER_PORT}/health", f":{LOADER_PORT}/readyz"
        with suppress(httpx.TransportError):
            return all(get(f"http://{self.address}{page}").status_code == 200 for page in pages)
        return False

    def end(self) -> None:
        if self.is_ready():
            at = f"http://{self.address}"
            self.loaded = get(f"{at}:{LOADER_PORT}{STATUS}").json()["loads"]
            lines = get(f"{at}:{SERVER_PORT}/metrics").text.splitlines()
            counts = [line.split()[-1] for line in lines if line.startswith("vllm:request_success_total")]
            self.answered = sum(map(float, counts))
        for each in self.processes:
            each.terminate()
        for each in self.processes:
            try:
                each.wait(30)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


class Kubelet:
    """Run the containers of a TrainJob and a Deployment as local processes, until they are deleted."""

    def __init__(self, fake: FakeKubernetes, place: Path) -> None:
        self.pods: list[Pod] = []
        self._place, self._fake, self._port = place, fake, find_free_port()
        self._ready = place / "ready"
        self._ready.touch()
        (place / "names").mkdir()
        (place / "own").mkdir()
        (place / "names" / "sitecustomize.py").write_text(NAMES)
        self._trainer = Trainer(fake, started=self._train)
        self._codes: dict[int, int] = {}
        self._nodes: list[subprocess.Popen[str]] = []
        fake.settle, fake.on_delete = self._settle, self._on_delete
        self._watching = threading.Thread(target=self._watch, daemon=True)
        self._is_over = threading.Event()

    def __enter__(self) -> "Kubelet":
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._watching.join()
        for node in self._nodes:
            node.kill()
        for pod in self.pods:
            pod.end()

    def _settle(self, made: Object) -> None:
        self._trainer.settle(made)
        if made["kind"] == "Deployment" and not self.pods:
            spec = made["spec"]["template"]["spec"]
            server, loader = ([*each["command"]] for each in spec["containers"])
            self.pods += [self._start_pod(number, server, loader) for number in range(made["spec"]["replicas"])]

    def _start_pod(self, number: int, server: list[str], loader: list[str]) -> Pod:
        """Start a server and its loader, which share an address and a directory."""
        address, directory = f"127.0.0.{77 + number}", str(self._place / f"adapters-{number}")
        log = self._place / f"pod-{number}.log"
        own = {name: value for name, value in os.environ.items() if name != "VLLM_LOGGING_LEVEL"}
        own |= {"POD_IP": address, "VLLM_API_KEY": self._find_key()}
        server, loader = (
            [directory if each == ADAPTER_DIRECTORY else each for each in words] for words in (server, loader)
        )
        words = [[sys.executable, *server[1:]], [sys.executable, "-m", *loader, "--host", address]]
        with log.open("ab") as output:
            started = [subprocess.Popen(each, stdout=output, stderr=output, env=own) for each in words]
        return Pod(address, started, log)

    def _find_key(self) -> str:
        """Return the key in the run's Secret."""
        (key,) = [
            each["stringData"]["VLLM_API_KEY"] for kind, each in self._fake.objects.items() if kind[0] == "secrets"
        ]
        return str(key)

    def _watch(self) -> None:
        while not self._is_over.wait(0.2):
            self._ready.write_text(" ".join(each.address for each in self.pods if each.is_ready()))

    def _on_delete(self, gone: Object) -> None:
        if gone["kind"] == "Deployment":
            for pod in self.pods:
                pod.end()

    def _train(self, job: Object, number: int, pod: Object) -> None:
        spec = job["spec"]["trainer"]
        env = {  # of Kubeflow Trainer's torch runtime
            "PET_NNODES": str(spec["numNodes"]),
            "PET_NPROC_PER_NODE": str(spec["numProcPerNode"]),
            "PET_NODE_RANK": str(number),
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": str(self._port),
            "OMP_NUM_THREADS": "1",
            "READY": str(self._ready),
            "VLLM_API_KEY": self._find_key(),
            "TMPDIR": str(self._place / "own"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self._place / "names"), os.environ.get("PYTHONPATH")])),
        }
        private = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$TMPDIR" && exec "$@"', "sh"]
        process = subprocess.Popen(
            [*private, sys.executable, *spec["command"][1:]],
            env={**os.environ, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._nodes.append(process)

        def follow() -> None:
            assert process.stdout is not None
            with process.stdout as output:
                for line in output:
                    self._fake.write_log(pod["metadata"]["name"], line.rstrip("\n"))
            self._codes[number] = process.wait()
            if len(self._codes) == spec["numNodes"]:
                self._trainer.end(job["metadata"]["name"], *(self._codes[each] for each in sorted(self._codes)))

        threading.Thread(target=follow, daemon=True).start()


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("small_disk")  # skips the test if mounting is not permitted
def test_nodes_train_with_servers_and_publish_the_result(
    place: Path,
    cluster: FakeKubernetes,
    s3_bucket: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test needs its own vLLM servers, which the pods start."""
    from gumshoe_pipelines.trainjob_step import TrainJobOptions, get_handover_uri, train_on_cluster

    run = f"s3://{s3_bucket}/acme/runs/r1"
    asked = TrainRequest.of_step(place / "index", place / "questions", "tiny", "", SETTINGS, run, None)
    where = TrainJobOptions.of(NODES, 0, {"rollout_servers": SERVERS}, "trainer", {}, [])
    with Kubelet(cluster, place) as kubelet:
        found = train_on_cluster(asked, where, Cluster.of(None, None), Timeouts(poll_interval=0.2))
    printed = capsys.readouterr().out
    assert f"\nStep 1/{STEPS} |" in printed
    assert re.search(rf"^Evaluation .* {STEPS} \| Acc ", printed, re.M)
    assert printed.count(f"Step {STEPS}/{STEPS}") == 1, "only one node prints"
    assert not cluster.objects, build_job_name(run)

    assert (found.facts["base_model"], found.facts["step"]) == ("tiny", STEPS)
    assert (found.adapter / "adapter_model.safetensors").exists()
    assert json.loads((found.adapter / "adapter_config.json").read_text())["peft_type"] == "LORA"
    assert found.plots.stat().st_size > 1000
    assert found.numbers["step importance_ratio"] == pytest.approx(1, abs=1e-3), "sampler and trainers agree"

    assert [pod.loaded for pod in kubelet.pods] == [STEPS + 1] * SERVERS, "each step's policy, and the evaluated one"
    assert all(pod.answered for pod in kubelet.pods), "both servers sampled"
    assert all(" INFO " in pod.log.read_text() for pod in kubelet.pods), "vLLM writes a log"
    assert len(list(Store(get_handover_uri(run)).list(ADAPTERS))) == 2, "older ones are removed"
    kinds = {each.reference.split("/")[0] for each in Store(run).list()}
    assert kinds >= {"inputs", "results", "checkpoints"}

    monkeypatch.delenv("KUBECONFIG")  # a finished run needs no cluster
    assert train_on_cluster(asked, where).numbers == found.numbers
