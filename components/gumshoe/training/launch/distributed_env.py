"""The place of this machine among those that share a run."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from gumshoe.errors import UsageError
from gumshoe.training.planning.gpu_allocation import threads_per_process

RUN_ENDED = "over"
"""Value that the first machine publishes instead of a specification if the run has finished."""
SPEC_KEY = "run"
"""Key under which the first machine publishes the specification of the run."""
_END_TIMEOUT = 60.0  # seconds for other machines to read that the run has finished


@dataclass(frozen=True, slots=True)
class DistributedEnv:
    """The rank of this machine among those that share a run, and the address of the first one."""

    rank: int = 0
    count: int = 1
    """Number of machines."""
    address: str = "127.0.0.1"
    """Address of the first machine."""
    port: int = 0
    """Port of the first machine for the rendezvous of the trainers; 0: any free port, for a single machine."""
    trainers: int | None = None
    """Number of trainers on each machine, if the launcher sets it."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> "DistributedEnv":
        """Read the environment variables of torchrun (PET_*), which Kubeflow Trainer sets.

        Raises:
            UsageError: a variable is missing or invalid.
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

    def local_processes(self, processes: int) -> int:
        """Return the number of trainers on this machine, out of all.

        Raises:
            UsageError: the trainers cannot be split evenly over the machines.
        """
        each = processes // self.count
        if processes % self.count or self.trainers not in (None, each):
            each_has = "" if self.trainers is None else f" with {self.trainers} trainers each"
            wanted = self.count * (self.trainers or max(1, each))
            raise UsageError(
                "training.unequal-nodes",
                f"optimizer.processes, the trainers of all machines together, is {processes} for {self.count} machines"
                f"{each_has}; set it to {wanted}",
            )
        return each

    def process_environment(self, number: int, processes: int, port: int) -> dict[str, str]:
        """Return the environment variables of torch.distributed for one of this machine's trainers."""
        here = self.local_processes(processes)
        return {
            "RANK": str(self.rank * here + number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(here),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # torch uses the store of `Rendezvous`
            "OMP_NUM_THREADS": threads_per_process(here),
        }

    def announce_end(self, processes: int) -> None:
        """Tell the trainers of other machines that the run has finished, if they connect within a minute."""
        if self.count == 1:
            return
        from torch import distributed

        with suppress(distributed.DistNetworkError, distributed.DistStoreError):  # a machine that misses it tries again
            store = distributed.TCPStore(self.address, self.port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
            store.set(SPEC_KEY, RUN_ENDED)
            replies = [f"{RUN_ENDED}/{rank}" for rank in range(self.local_processes(processes), processes)]
            store.wait(replies, timedelta(seconds=_END_TIMEOUT))
