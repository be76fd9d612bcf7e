"""Share one vLLM server with the tiny policy among all workers of a test session.

The first worker that needs it starts it under a lock file, and writes its address to a port file, which the others
read. That worker stops it once no other worker uses it. If that worker is killed, its reaper stops the server, and the
next test that needs one starts another.

The files of its model contain hostile sampling defaults, which are active, as can happen on a server that somebody else
started. Tests sample correctly in spite of them.
"""

import fcntl
import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from gumshoe.inference.policy_names import TINY
from gumshoe.inference.vllm_server import ServerOptions, VLLMServer, load_adapter, unload_adapter

NAME = "tiny"
"""The name under which the tiny policy is served."""
MAX_MODEL_LEN = 8192
_HOSTILE = {"do_sample": True, "temperature": 0.1, "top_p": 0.5, "top_k": 3, "repetition_penalty": 1.3}
# As a chat judge, the tiny policy would generate spaces or words without end.
_JUDGE = {"--structured-outputs-config": {"backend": "xgrammar", "disable_any_whitespace": True}}
_JUDGE |= {"--override-generation-config": {"max_new_tokens": 1024}}
_PATIENCE = 300.0  # seconds for a request to the server itself


@dataclass(frozen=True)
class SharedServer:
    """A vLLM server that all tests share; adapters of a test have unique names."""

    url: str
    model: Path
    """Directory of its model: the tiny policy with hostile sampling defaults."""
    log: Path

    @property
    def policy(self) -> str:
        """The policy's name on the command line; it needs `model` as its tokenizer."""
        return f"vllm:{self.url}#{NAME}"

    @contextmanager
    def adapter(self, directory: Path) -> Iterator[str]:
        """Serve an adapter while the block runs, and yield its unique name."""
        name = f"adapter-{uuid.uuid4().hex[:12]}"
        load_adapter(self.url, name, directory, _PATIENCE)
        try:
            yield name
        finally:
            unload_adapter(self.url, name, _PATIENCE)


def write_hostile_tiny(directory: Path) -> Path:
    """Copy the tiny policy, with unwanted sampling defaults and stop ids in its files."""
    shutil.copytree(TINY, directory)
    ends = {"eos_token_id": [2, 7, 11]}
    (directory / "generation_config.json").write_text(json.dumps({**_HOSTILE, **ends}))
    return directory


@contextmanager
def shared_server(place: Path) -> Iterator[SharedServer]:
    """Yield the server of the session whose workers share the directory `place`; start it if none runs.

    Raises:
        UsageError: vLLM is not installed.
        ServerError: the server did not start.
    """
    place.mkdir(exist_ok=True)
    port_file, log = place / "url", place / "vllm.log"
    with ExitStack() as stack:
        users = stack.enter_context((place / "users.lock").open("w"))
        owned = None
        with _locked(place / "start.lock"):
            fcntl.flock(users, fcntl.LOCK_SH)
            url = port_file.read_text() if port_file.exists() else ""
            model = place / "model"
            if not _is_healthy(url):
                if not model.exists():
                    write_hostile_tiny(model)
                arguments = ["--generation-config", "auto"]
                arguments += [each for name, value in _JUDGE.items() for each in (name, json.dumps(value))]
                options = ServerOptions(
                    NAME,
                    MAX_MODEL_LEN,
                    arguments=tuple(arguments),
                    environment={"VLLM_LOGGING_LEVEL": "INFO"},  # TRL sets it to ERROR in a process that imports it
                )
                owned = VLLMServer(model, log=log, options=options)
                owned.__enter__()
                url = owned.url
                port_file.write_text(url)
        try:
            yield SharedServer(url, model, log)
        finally:
            if owned is not None:
                fcntl.flock(users, fcntl.LOCK_EX)  # once no other worker uses it
                with _locked(place / "start.lock"):
                    port_file.unlink()
                    owned.stop()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_healthy(url: str) -> bool:
    with suppress(httpx.TransportError):
        return bool(url) and httpx.get(f"{url}/health", timeout=_PATIENCE, trust_env=False).is_success
    return False
