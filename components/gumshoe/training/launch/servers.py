"""The vLLM servers of a run: started together, or in turn on one GPU; each that ends is started again on its own."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gumshoe.inference.vllm_server import ServerError, ServerOptions, VLLMServer, free_ports, lora_rank_slot
from gumshoe.terminal import err
from gumshoe.training.planning.gpu_allocation import GpuAllocation
from gumshoe.training.run_spec import METRICS, SERVED, SERVER_LOG, base_model
from gumshoe.training.settings import TrainSettings

_LOOK = 0.25  # seconds
_STARTS = 3  # of a server that ends by itself, without a step between them


@dataclass(slots=True)
class _KeptServer:
    """A server that is kept up."""

    server: VLLMServer
    name: str
    starts: int = 1
    written: int = 0
    """Bytes of the steps' records when it was started last."""
    is_starting: bool = False


class Servers:
    """Servers that sample for a run, from entering the context to leaving it. Those that start `in_turn` wait until the
    one before is ready.

    Raises on entering:
        UsageError: vLLM is not installed, or there is no such model.
        ServerError: one did not start.
    """

    def __init__(self, servers: Sequence[VLLMServer], directory: Path, *, in_turn: bool = False) -> None:
        several = len(servers) > 1
        self._kept = [
            _KeptServer(each, f"vLLM {place}" if several else "vLLM") for place, each in enumerate(servers, 1)
        ]
        self._directory, self._in_turn = directory, in_turn
        self._stack = ExitStack()

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(each.server.url for each in self._kept)

    def __enter__(self) -> "Servers":
        with ExitStack() as stack:
            for each in self._kept:
                stack.callback(each.server.stop)
                each.server.begin()
                if self._in_turn:
                    _wait_for(each.server)
            for each in self._kept:
                _wait_for(each.server)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def keep_up(self, is_ending: Callable[[], bool]) -> None:
        """Look at each, and start those again that have ended, with the adapter that they must have, unless all is to
        end. The others go on meanwhile, and this does not wait.

        Raises:
            ServerError: one ends again and again, or does not start.
        """
        for each in self._kept:
            if not each.server.is_running():
                if not is_ending():
                    self._start_again(each)
            elif each.is_starting and each.server.is_ready():
                each.is_starting = False
                err.print(f"{each.name} is there again")

    def _start_again(self, kept: _KeptServer) -> None:
        before, kept.written = kept.written, _size(self._directory / METRICS)
        kept.starts = 1 if kept.written > before else kept.starts
        if kept.starts == _STARTS:
            raise ServerError(
                "training.server-keeps-ending", f"{kept.name} ended {kept.starts} times; {kept.server.log_tail()}"
            )
        kept.starts += 1
        err.print(f"[bold yellow]warning:[/] {kept.name} has ended; starting it again")
        kept.server.restart(_adapter(self._directory))
        kept.is_starting = True


def servers_of(settings: TrainSettings, directory: Path, shares: GpuAllocation) -> Servers:
    """Those that a run is to start, at ports that were free, each with a log of its own."""
    count, model = len(shares.servers), settings.model
    made = []
    for number, port in enumerate(free_ports(count)):
        options = ServerOptions(
            max_model_len=model.max_context,
            max_lora_rank=lora_rank_slot(settings.lora.rank),
            dtype="bfloat16" if model.dtype == "auto" and shares.trainers else model.dtype,  # as trained
            gpu_memory=settings.rollouts.gpu_memory or shares.memory,
            port=port,
            arguments=shares.server_arguments(number),
            environment=shares.server_environment(number),
        )
        made.append(VLLMServer(base_model(settings), log=directory / _log_of(number, count), options=options))
    # while vLLM measures how much of a GPU it uses, the growing use of another would count as its own
    return Servers(made, directory, in_turn=shares.most_servers > 1)


def logs_in(directory: Path) -> list[Path]:
    """What the servers of a run wrote there, of whatever number."""
    first, last = SERVER_LOG.split(".")
    return sorted(directory.glob(f"{first}*.{last}"))


def _log_of(number: int, count: int) -> str:
    first, last = SERVER_LOG.split(".")
    return f"{first}-{number + 1}.{last}" if count > 1 else SERVER_LOG


def _wait_for(server: VLLMServer) -> None:
    while not server.is_ready():
        time.sleep(_LOOK)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _adapter(directory: Path) -> tuple[str, Path] | None:
    """The adapter that servers must have, as the trainer wrote it down."""
    try:
        served = json.loads((directory / SERVED).read_text())
    except FileNotFoundError:
        return None
    return served["name"], Path(served["path"])
