"""Fixtures that every folder of tests shares: a real S3 API over HTTP, in a process of its own."""

import http.client
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import hypothesis
import psutil
import pytest

from gumshoe.inference.vllm_server import find_free_ports
from tests.artifacts.fault_proxy import FaultProxy
from tests.waiting import Clock

pytest_plugins = ["tests.times", "tests.groups", "tests.rollouts.fixtures"]

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.cluster.fake_kubernetes import FakeKubernetes
    from tests.shared_server import SharedServer

# A shell's background job ignores SIGINT, and so would every command that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Rewritten assertions, and modules that each command would compile again, are compiled once, whatever the machine says.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Threads of OpenMP that wait keep a core busy: two trainers with two of them each on two cores take eight times as
# long. Set before torch is imported, and what tests start has it too.
os.environ["OMP_NUM_THREADS"] = "1"
# xdist's titles of processes would overwrite the environment that Helm reads, and its caches would lie in the checkout.
os.environ["SPT_NOENV"] = "1"
os.environ.pop("COLUMNS", None)  # as pytest-xdist has it: a console that is made now would keep to it
# Speed is for benchmarks. `make test-all` takes the second profile, and prints how to repeat what failed.
hypothesis.settings.register_profile("fixed", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("random", deadline=None, print_blob=True)
hypothesis.settings.load_profile("fixed")
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def find_free_port() -> int:
    """A port of this machine that nothing listens at."""
    return find_free_ports(1)[0]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept to be used again is kept for this session of tests alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GUMSHOE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.setenv("KUBECACHEDIR", str(tmp_path_factory.mktemp("kube-cache")))  # of Helm and kubectl
        yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The monotonic clock of this process, which moves forward when the test says so."""
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.now)
    return made


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an S3 server (moto's, which keeps everything in its memory)."""
    log = tmp_path_factory.mktemp("moto") / "server.log"
    port = find_free_port()
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.s3_server", "-H", "127.0.0.1", "-p", str(port)],
            cwd=Path(__file__).parents[1],
            stdout=output,
            stderr=output,
            env={name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_until_it_answers(address, server, log)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_until_it_answers(address: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    started = time.monotonic()
    while time.monotonic() - started < 60:
        assert server.poll() is None, f"moto ended: {log.read_text()}"
        try:
            _NO_PROXY.open(f"{address}/moto-api/", timeout=5).close()
        except (OSError, http.client.HTTPException):  # TimeoutError, too, while it imports
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"moto does not answer at {address}: {log.read_text()}")


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment from which boto3 gets made-up keys, and nothing from this machine or its network."""
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-a-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-aws-credentials"))
    return monkeypatch


@pytest.fixture
def s3_bucket(s3_server: str, aws_environment: pytest.MonkeyPatch) -> str:
    """A fresh bucket; the environment names its server and holds keys for it."""
    aws_environment.setenv("AWS_ENDPOINT_URL", s3_server)
    bucket = f"bucket-{uuid.uuid4().hex}"
    _NO_PROXY.open(
        urllib.request.Request(f"{s3_server}/{bucket}", method="PUT")
    ).close()  # boto3 takes ten times as long
    return bucket


@pytest.fixture
def proxy(s3_server: str) -> Iterator[FaultProxy]:
    """A proxy in front of the S3 server."""
    with FaultProxy.before(s3_server) as proxy:
        yield proxy
    assert proxy.errors == []


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to a command and then to all that it started."""
    for each in [process, *psutil.Process(process.pid).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            each.kill()
    process.wait()


def skip_missing(what: str) -> NoReturn:
    """Skip a test for want of something from outside Python; in CI, where all of it is installed, fail it."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and CI is to have it")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SharedServer"]:
    """A real vLLM server with the tiny policy, which all workers share."""
    from gumshoe.inference.vllm_server import is_vllm_installed
    from tests.shared_server import shared_server

    if not is_vllm_installed():
        skip_missing("vLLM (the CPU build comes with `make install` on Linux)")
    own = tmp_path_factory.getbasetemp()
    with shared_server((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "vllm") as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Closed with this module: as long as it is open, Playwright keeps an event loop running in this thread."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        skip_missing("a browser (chromium)")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 5 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", place], capture_output=True, check=False)
    if made.returncode:
        skip_missing("the right to mount a file system")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The real mail and questions, which lie beside the checkout and are never committed."""
    data = Path(__file__).parents[2] / "shared" / "data"
    if not data.is_dir():
        pytest.skip(f"real data is missing ({data.parent.name}/{data.name} beside the checkout)")
    return data


@pytest.fixture(scope="session")
def real_index(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the real mail, as the command line makes it."""
    from gumshoe.mail.build import build_mail_index

    directory = tmp_path_factory.mktemp("real") / "index"
    build_mail_index([f"jsonl:{shared_data / 'enron' / 'mail.jsonl.gz'}"], directory)
    return directory


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["FakeKubernetes"]:
    """A Kubernetes API that KUBECONFIG leads to."""
    from tests.cluster.fake_kubernetes import fake_kubernetes

    with fake_kubernetes(tmp_path) as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig))
        yield fake


@pytest.fixture
def assert_valid() -> Callable[[Iterable[dict[str, Any]]], None]:
    """Return a function that checks objects against the schemas of Kubernetes and of the custom resources."""
    from tests.manifests.schemas import TOOL, faults_of

    if not TOOL.is_file():
        pytest.skip("the schemas beside the checkout are missing")

    def validate(objects: Iterable[dict[str, Any]]) -> None:
        assert faults_of(objects) == []

    return validate


@dataclass(frozen=True)
class CommandResult:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def code(self) -> str | None:
        """The code of the error that ended it, which stands at the end of standard error."""
        found = re.search(r"\[([a-z-]+\.[a-z0-9-]+)\]\s*\Z", self.err)
        return found and found[1]


@pytest.fixture(scope="session")
def gumshoe() -> Callable[..., CommandResult]:
    """Runs the command line in a process of its own, as a user does."""

    def run(*arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> CommandResult:
        ended = subprocess.run(
            [sys.executable, "-m", "gumshoe", *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, "COLUMNS": "200", **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        return CommandResult(ended.returncode, ended.stdout, ended.stderr)

    return run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CommandResult]]:
    """Runs the command line in this process: it takes a second to start in one of its own."""
    from gumshoe.cli import main

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]

    def typed(*arguments: object) -> CommandResult:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments)])
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return CommandResult(ended.value.code, printed.out, printed.err)

    yield typed
    for each in {*root.handlers} - {*handlers}:  # of a command that logs, to what it printed to
        root.removeHandler(each)
    root.setLevel(level)
