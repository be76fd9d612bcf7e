"""The machines that share a run, and the place of this one among them."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from gumshoe.errors import UsageError
from gumshoe.training.planning.gpu_allocation import threads

OVER = "over"
"""What the first machine says of a run that is at its end, in place of what the run is."""
TOLD = "run"
"""Where it says so."""
_LATE = 60.0  # seconds for others to hear that a run is at its end


@dataclass(frozen=True, slots=True)
class DistributedEnv:
    """This machine's place among those that share a run."""

    rank: int = 0
    count: int = 1
    address: str = "127.0.0.1"
    """Of the first."""
    port: int = 0
    """Where the trainers meet there; any that is free on one machine."""
    trainers: int | None = None
    """On each, where whoever starts them says so."""

    @classmethod
    def here(cls, environ: Mapping[str, str] = os.environ) -> "DistributedEnv":
        """As the environment says it, in the names of torchrun, which Kubeflow Trainer sets.

        Raises:
            UsageError: it says something that cannot be.
        """
        if environ.get("PET_NNODES", "1") == "1":
            return cls()
        try:
            trainers = environ.get("PET_NPROC_PER_NODE", "auto")
            node = cls(
                int(environ["PET_NODE_RANK"]),
                int(environ["PET_NNODES"]),
                environ["PET_MASTER_ADDR"],
                int(environ["PET_MASTER_PORT"]),
                int(trainers) if trainers.isdecimal() else None,
            )
        except (KeyError, ValueError) as error:
            raise UsageError(
                "training.invalid-node-environment",
                f"PET_NNODES is {environ['PET_NNODES']}, but a PET_ variable is missing or not an integer: {error}; "
                "set PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT too, or none of them for one machine",
            ) from None
        if not 0 <= node.rank < node.count:
            raise UsageError(
                "training.invalid-node-rank",
                f"PET_NODE_RANK must be from 0 to {node.count - 1} with {node.count} machines, got {node.rank}",
            )
        return node

    def local(self, processes: int) -> int:
        """How many of all trainers are on this machine.

        Raises:
            UsageError: the machines cannot have as many each.
        """
        each = processes // self.count
        if processes % self.count or self.trainers not in (None, each):
            told = "" if self.trainers is None else f" with {self.trainers} trainers each"
            wanted = self.count * (self.trainers or max(1, each))
            raise UsageError(
                "training.unequal-nodes",
                f"optimizer.processes, the trainers of all machines together, is {processes} for {self.count} machines"
                f"{told}; set it to {wanted}",
            )
        return each

    def environment(self, number: int, processes: int, port: int) -> dict[str, str]:
        """What torch.distributed takes for one of this machine's trainers."""
        here = self.local(processes)
        return {
            "RANK": str(self.rank * here + number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(here),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # theirs is where ours is, in `Rendezvous`
            "OMP_NUM_THREADS": threads(here),
        }

    def tell_that_it_is_over(self, processes: int) -> None:
        """Let the trainers of other machines hear that the run is at its end, as far as they ask within a minute."""
        if self.count == 1:
            return
        from torch import distributed

        with suppress(distributed.DistNetworkError, distributed.DistStoreError):  # who does not hear it tries again
            store = distributed.TCPStore(self.address, self.port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
            store.set(TOLD, OVER)
            heard = [f"{OVER}/{rank}" for rank in range(self.local(processes), processes)]
            store.wait(heard, timedelta(seconds=_LATE))
