"""Start the vLLM servers of a run, together or in turn on a shared GPU, and restart each one that ends."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gumshoe.artifacts.adapter_layout import round_up_lora_rank
from gumshoe.inference.vllm_server import ServerError, ServerOptions, VLLMServer, find_free_ports
from gumshoe.terminal import err
from gumshoe.training.planning.gpu_allocation import GpuAllocation
from gumshoe.training.run_spec import ADAPTERS, METRICS, SERVED, SERVER_LOG, base_model
from gumshoe.training.settings import TrainSettings

_POLL = 0.25  # seconds
_MAX_STARTS = 3  # of a server that ends by itself, without a training step in between


@dataclass(slots=True)
class _ManagedServer:
    """A server that is restarted if it ends."""

    server: VLLMServer
    name: str
    starts: int = 1
    written: int = 0
    """Size of `metrics.jsonl` at the last start, in bytes; it grows with each step."""
    is_starting: bool = False


class Servers:
    """Run the vLLM servers of a run as a context manager. With `in_turn`, each starts after the previous one is ready.

    Raises on entering:
        UsageError: vLLM is not installed, or the model does not exist.
        ServerError: a server did not start.
    """

    def __init__(self, servers: Sequence[VLLMServer], directory: Path, *, in_turn: bool = False) -> None:
        several = len(servers) > 1
        self._managed = [
            _ManagedServer(each, f"vLLM {place}" if several else "vLLM") for place, each in enumerate(servers, 1)
        ]
        self._directory, self._in_turn = directory, in_turn
        self._stack = ExitStack()

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(each.server.url for each in self._managed)

    def __enter__(self) -> "Servers":
        with ExitStack() as stack:
            for each in self._managed:
                stack.callback(each.server.stop)
                each.server.start()
                if self._in_turn:
                    _wait_until_ready(each.server)
            for each in self._managed:
                _wait_until_ready(each.server)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def restart_ended(self, is_ending: Callable[[], bool]) -> None:
        """Restart the servers that have ended, with the current adapters, unless `is_ending` returns True.

        This does not wait for a restart, and the other servers continue.

        Raises:
            ServerError: a server ends repeatedly, or does not start.
        """
        for each in self._managed:
            if not each.server.is_running():
                if not is_ending():
                    self._restart(each)
            elif each.is_starting and each.server.is_ready():
                each.is_starting = False
                err.print(f"{each.name} is ready again")

    def _restart(self, managed: _ManagedServer) -> None:
        before, managed.written = managed.written, _size(self._directory / METRICS)
        managed.starts = 1 if managed.written > before else managed.starts
        if managed.starts == _MAX_STARTS:
            raise ServerError(
                "training.server-keeps-ending",
                f"{managed.name} ended {managed.starts} times; {managed.server.log_tail()}",
            )
        managed.starts += 1
        err.print(f"[bold yellow]warning:[/] {managed.name} ended; restarting it")
        managed.server.restart(_read_served_adapters(self._directory))
        managed.is_starting = True


def create_servers(settings: TrainSettings, directory: Path, allocation: GpuAllocation) -> Servers:
    """Return the servers that a run starts, each with a free port and a log file."""
    count, model = len(allocation.servers), settings.model
    made = []
    for number, port in enumerate(find_free_ports(count)):
        options = ServerOptions(
            max_model_len=model.max_context,
            max_lora_rank=round_up_lora_rank(settings.lora.rank),
            max_loras=settings.adapter_slots,
            dtype="bfloat16" if model.dtype == "auto" and allocation.trainers else model.dtype,  # as trained
            gpu_memory=settings.rollouts.gpu_memory or allocation.server_memory_share,
            port=port,
            arguments=allocation.server_arguments(number),
            environment=allocation.server_environment(number),
            adapter_directories=(directory / ADAPTERS,),
        )
        made.append(VLLMServer(base_model(settings), log=directory / _log_name(number, count), options=options))
    # vLLM measures how much GPU memory it uses at its start, and would count that of another server starting beside it
    return Servers(made, directory, in_turn=allocation.max_servers_per_gpu > 1)


def find_server_logs(directory: Path) -> list[Path]:
    """Return the log files of a run's servers."""
    first, last = SERVER_LOG.split(".")
    return sorted(directory.glob(f"{first}*.{last}"))


def _log_name(number: int, count: int) -> str:
    first, last = SERVER_LOG.split(".")
    return f"{first}-{number + 1}.{last}" if count > 1 else SERVER_LOG


def _wait_until_ready(server: VLLMServer) -> None:
    while not server.is_ready():
        time.sleep(_POLL)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_served_adapters(directory: Path) -> dict[str, Path]:
    """Return the paths of the adapters that servers must serve, by name; none before the first."""
    try:
        served = json.loads((directory / SERVED).read_text())
    except FileNotFoundError:
        return {}
    return {name: Path(path) for name, path in served.items()}
