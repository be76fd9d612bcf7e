"""Fixtures for all tests: an S3 server, a vLLM server, a fake cluster, the command line, and others."""

import asyncio
import gc
import http.client
import inspect
import logging
import os
import re
import shutil
import signal
import socketserver
import ssl
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn
from unittest.mock import patch

import hypothesis
import psutil
import pytest
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from gumshoe.inference.vllm_server import find_free_ports
from tests.artifacts.fault_proxy import FaultProxy
from tests.waiting import Clock
from tests.warm_processes import start_gumshoe

pytest_plugins = ["tests.times", "tests.groups", "tests.rollouts.fixtures"]

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.cluster.fake_kubernetes import FakeKubernetes
    from tests.shared_server import SharedServer

# A background job of a shell ignores SIGINT, and so would every command that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Under nohup, all processes ignore SIGHUP. They do not inherit a handler, so commands that tests start get the signal.
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)
# Write bytecode even if the machine disables it, so that modules are compiled once and not by every command.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Waiting threads of OpenMP keep a core busy: two trainers with two threads each take eight times as long on two cores.
# Set before torch is imported, and inherited by child processes.
os.environ["OMP_NUM_THREADS"] = "1"
# Let Go collect garbage less often, in Helm's library and in the programs helm and kubectl.
os.environ["GOGC"] = "800"
# The process titles of xdist would overwrite the environment that Helm reads, and its caches would be in the checkout.
os.environ["SPT_NOENV"] = "1"
os.environ.pop("COLUMNS", None)  # set by pytest-xdist; a console that is created now would keep it
# A server that writes headers and body separately would wait 40 ms for the client's acknowledgement in between.
socketserver.StreamRequestHandler.disable_nagle_algorithm = True
# No deadlines: benchmarks measure speed. `make test-all` uses the second profile, which prints how to repeat failures.
hypothesis.settings.register_profile("fixed", deadline=None, derandomize=True, database=None, max_examples=50)
hypothesis.settings.register_profile("random", deadline=None, print_blob=True)
hypothesis.settings.load_profile("fixed")
_MANY_FILES = 256


def pytest_configure(config: pytest.Config) -> None:
    """Let drawn examples depend on the test alone, except in the profile that draws at random.

    Hypothesis also draws the constants of loaded modules, and which are loaded differs between workers and runs.
    """
    _keep_process_title(config)
    if config.getoption("--hypothesis-profile") != "random":
        assert hasattr(providers, "_get_local_constants"), "hypothesis has changed: find how it collects constants now"
        providers._get_local_constants = Constants


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Let the garbage collector skip what the collected modules hold, and run less often: it takes 10 % of a run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    # The code of xdist's workers has no file, for which `inspect.stack`, as kfp calls it, would look in all modules.
    inspect.modulesbyfile["<string>"] = "__main__"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Collect garbage if many files are open: indexes keep theirs until then, and the collector counts only objects."""
    if psutil.Process().num_fds() > _MANY_FILES:
        gc.collect()


def _keep_process_title(config: pytest.Config) -> None:
    """Keep pytest-xdist from changing the title of its workers with each test: Helm's library signs changes with it."""
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":
            plugin.run_one_test.__globals__["setproctitle"] = lambda _: None


_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def find_free_port() -> int:
    """Return a free port of this machine."""
    return find_free_ports(1)[0]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use caches of this test session only."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GUMSHOE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.setenv("KUBECACHEDIR", str(tmp_path_factory.mktemp("kube-cache")))  # for Helm and kubectl
        yield


@pytest.fixture(scope="session", autouse=True)
def shared_certificates() -> Iterator[None]:
    """Read the trusted certificates once per file: httpx does for each client, even without TLS, which takes 25 ms."""
    import httpx
    from httpx._config import create_ssl_context as create
    from httpx._transports import default

    @cache
    def create_once(trust_env: bool, _trusted: tuple[str | None, str | None], _modified: int) -> ssl.SSLContext:
        return create(trust_env=trust_env)

    def create_context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        file, directory = (os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
        if verify is not True or cert is not None or (file and not Path(file).is_file()):
            return create(verify, cert, trust_env)
        return create_once(trust_env, (file, directory), Path(file).stat().st_mtime_ns if file else 0)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(default, "create_ssl_context", create_context)
        patched.setattr(httpx, "create_ssl_context", create_context)
        yield


@pytest.fixture(scope="session", autouse=True)
def short_pauses() -> Iterator[None]:
    """Shorten the pauses of uvicorn and of pebble in this process, which look every 0.1 seconds if they should stop."""
    import uvicorn.server
    from pebble.common.types import CONSTS

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(uvicorn.server, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        patched.setattr(CONSTS, "sleep_unit", 0.01)
        yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the monotonic clock of this process with one that the test can move forward."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.now)
    return clock


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start an S3 server (moto, which keeps everything in memory), and yield its address."""
    log = tmp_path_factory.mktemp("moto") / "server.log"
    port = find_free_port()
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.s3_server", "-H", "127.0.0.1", "-p", str(port)],
            cwd=Path(__file__).parents[1],
            stdout=output,
            stderr=output,
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
                "S3_IGNORE_SUBDOMAIN_BUCKETNAME": "true",  # a test's own host name is not a bucket
            },
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for_server(address, server, log)
        yield address
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait_for_server(address: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    started = time.monotonic()
    while time.monotonic() - started < 60:
        assert server.poll() is None, f"moto ended: {log.read_text()}"
        try:
            _NO_PROXY.open(f"{address}/moto-api/", timeout=5).close()
        except (OSError, http.client.HTTPException):  # or TimeoutError, while it imports
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"moto does not answer at {address}: {log.read_text()}")


@pytest.fixture
def aws_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Set fake keys for boto3, and hide the AWS settings and proxies of this machine."""
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
    """Create a bucket, set the environment for its server, and return its name."""
    aws_environment.setenv("AWS_ENDPOINT_URL", s3_server)
    bucket = f"bucket-{uuid.uuid4().hex}"
    _NO_PROXY.open(
        urllib.request.Request(f"{s3_server}/{bucket}", method="PUT")
    ).close()  # boto3 takes ten times longer
    return bucket


@pytest.fixture
def proxy(s3_server: str) -> Iterator[FaultProxy]:
    """Run a proxy in front of the S3 server that can inject faults."""
    with FaultProxy.before(s3_server) as proxy:
        yield proxy
    assert proxy.errors == []


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to a command, and then to all processes that it started."""
    for each in [process, *psutil.Process(process.pid).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):  # the process has ended
            each.kill()
    process.wait()


def skip_missing(what: str) -> NoReturn:
    """Skip a test because a program is not installed; fail it in CI, where everything is installed."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, but must be installed in CI")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SharedServer"]:
    """Start a real vLLM server with the tiny policy, shared by all workers."""
    from gumshoe.inference.vllm_server import is_vllm_installed
    from tests.shared_server import shared_server

    if not is_vllm_installed():
        skip_missing("vLLM (the CPU build comes with `make install` on Linux)")
    own = tmp_path_factory.getbasetemp()
    with shared_server((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "vllm") as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """Open a browser for one module: while it is open, Playwright runs an event loop in this thread."""
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
    """Mount a file system of 5 MB, and yield its directory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", place], capture_output=True, check=False)
    if mount.returncode:
        skip_missing("the right to mount a file system")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the directory of the real mail and questions, beside the checkout; they are never committed."""
    data = Path(__file__).parents[2] / "shared" / "data"
    if not data.is_dir():
        pytest.skip(f"real data is missing ({data.parent.name}/{data.name} beside the checkout)")
    return data


@pytest.fixture(scope="session")
def shared_cases() -> Path:
    """Return the directory of inputs that people reported, beside the checkout; they are never committed."""
    cases = Path(__file__).parents[2] / "shared" / "cases"
    if not cases.is_dir():
        pytest.skip(f"reported cases are missing ({cases.parent.name}/{cases.name} beside the checkout)")
    return cases


@pytest.fixture(scope="session")
def real_index(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build an index of the real mail, as the command does."""
    from gumshoe.mail.build import build_mail_index

    directory = tmp_path_factory.mktemp("real") / "index"
    build_mail_index([f"jsonl:{shared_data / 'enron' / 'mail.jsonl.gz'}"], directory)
    return directory


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator["FakeKubernetes"]:
    """Run a fake Kubernetes API, and point KUBECONFIG to it."""
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
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def code(self) -> str | None:
        """Code of the error that ended the command, from the end of standard error."""
        found = re.search(r"\[([a-z-]+\.[a-z0-9-]+)\]\s*\Z", self.err)
        return found and found[1]


@pytest.fixture(scope="session")
def gumshoe() -> Callable[..., CommandResult]:
    """Return a function that runs the command in a process of its own, as a user does."""

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


def run_gumshoe(*arguments: object) -> CommandResult:
    """Run the command in a process of its own that has imported what it needs. See `tests.warm_processes`."""
    process = start_gumshoe(*arguments)
    out, err = process.communicate()
    return CommandResult(process.wait(), out, err)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CommandResult]]:
    """Yield a function that runs the command in this process, which saves a second of start time."""
    from gumshoe.cli import main

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]

    def typed(*arguments: object) -> CommandResult:
        capsys.readouterr()
        with patch.dict(os.environ), pytest.raises(SystemExit) as ended:  # the command may set variables
            main([*map(str, arguments)])
        printed = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return CommandResult(ended.value.code, printed.out, printed.err)

    yield typed
    for each in {*root.handlers} - {*handlers}:  # of commands that log to the captured output
        root.removeHandler(each)
    root.setLevel(level)
