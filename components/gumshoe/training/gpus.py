"""Which GPUs the trainers have, and which the server."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from gumshoe.errors import UsageError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ALONE, _SHARED = 0.9, 0.45  # share of a GPU's memory for a server that has it alone, and beside a trainer


@dataclass(frozen=True, slots=True)
class Shares:
    """GPUs by their names or numbers; none at all where there are none."""

    trainers: tuple[str, ...]
    """One for each process."""
    server: tuple[str, ...]
    """A power of two of them, over which the model is spread."""

    @property
    def memory(self) -> float:
        """The share of a GPU's memory that the server may take, unless something else is set."""
        return _SHARED if set(self.trainers) & set(self.server) else _ALONE

    def trainers_environment(self) -> dict[str, str]:
        return {VISIBLE: ",".join(self.trainers)} if self.trainers else {}

    def server_environment(self) -> dict[str, str]:
        return {VISIBLE: ",".join(self.server)} if self.server else {}

    def server_arguments(self) -> tuple[str, ...]:
        return ("--tensor-parallel-size", str(len(self.server))) if len(self.server) > 1 else ()


def visible_gpus() -> tuple[str, ...]:
    """Those that this process may use."""
    import torch

    count = torch.cuda.device_count()
    named = [each for each in os.environ.get(VISIBLE, "").split(",") if each]
    return tuple(named[:count] or map(str, range(count)))


def share_out(gpus: Sequence[str], processes: int, *, with_server: bool) -> Shares:
    """The first for the trainers, one each, and as many of the rest as a server can use; where none is left, it shares
    the last trainer's.

    Raises:
        UsageError: there are fewer than processes.
    """
    if not gpus:
        return Shares((), ())
    if len(gpus) < processes:
        raise UsageError(f"there are {len(gpus)} GPUs for {processes} trainers; set optimizer.processes to no more")
    rest = gpus[processes:]
    served = rest[: 1 << (len(rest).bit_length() - 1)] if rest else gpus[processes - 1 : processes]
    return Shares(tuple(gpus[:processes]), tuple(served) if with_server else ())
