"""Which GPUs the trainers have, and which the servers; and how much memory there is, and how many processors."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gumshoe.errors import UsageError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ALONE, _SHARED = 0.9, 0.45  # share of a GPU's memory for servers that have it alone, and beside a trainer


@dataclass(frozen=True, slots=True)
class GpuAllocation:
    """GPUs by their names or numbers; none at all where there are none."""

    trainers: tuple[str, ...]
    """One for each process."""
    servers: tuple[tuple[str, ...], ...]
    """For each, a power of two of them, over which the model is spread."""

    @property
    def most_servers(self) -> int:
        """That share one GPU."""
        return max(Counter(gpu for each in self.servers for gpu in each).values(), default=1)

    @property
    def memory(self) -> float:
        """The share of a GPU's memory that each server may take, unless something else is set."""
        return (_SHARED if self._are_shared else _ALONE) / self.most_servers

    @property
    def _are_shared(self) -> bool:
        """Whether servers have GPUs of the trainers."""
        return any(set(self.trainers) & set(each) for each in self.servers)

    def check_memory(self, given: float | None) -> None:
        """See whether there is room on each GPU for the shares of its memory that are `given` to the servers.

        Raises:
            UsageError: they are more than all of it, or leave a trainer nothing.
        """
        taken = (given or 0.0) * self.most_servers
        if taken > 1 or (taken == 1 and self._are_shared):
            beside = " and a trainer" * self._are_shared
            raise UsageError(
                "planning.gpu-overcommitted",
                f"rollouts.gpu_memory {given:g} is too much for {self.most_servers} vLLM server"
                f"{'s' * (self.most_servers > 1)}{beside} on one GPU: their shares must fit into 1; lower or unset it, "
                "or lower rollouts.num_servers",
            )

    def trainers_environment(self) -> dict[str, str]:
        return {VISIBLE: ",".join(self.trainers)} if self.trainers else {}

    def server_environment(self, number: int) -> dict[str, str]:
        """Of one of the servers; without GPUs, several of them have a share of the processor's threads each."""
        if self.servers[number]:
            return {VISIBLE: ",".join(self.servers[number])}
        return {"OMP_NUM_THREADS": threads(len(self.servers))} if len(self.servers) > 1 else {}

    def server_arguments(self, number: int) -> tuple[str, ...]:
        gpus = len(self.servers[number])
        return ("--tensor-parallel-size", str(gpus)) if gpus > 1 else ()


def threads(processes: int) -> str:
    """How many threads of the processor each of so many processes may use, as the environment has it."""
    return os.environ.get("OMP_NUM_THREADS") or str(max(1, available_processors() // processes))


def available_processors(root: Path = Path("/")) -> int:
    """The machine's, or as many as this process or its container may use; no less than 1."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(found, int(quota) // int(period)))
    except (OSError, ValueError):  # no such limits, or "max": none
        return found


def visible_gpus() -> tuple[str, ...]:
    """Those that this process may use."""
    import torch

    count = torch.cuda.device_count()
    named = [each for each in os.environ.get(VISIBLE, "").split(",") if each]
    return tuple(named[:count] or map(str, range(count)))


def memory_of_gpus() -> tuple[int, ...]:
    """Bytes of each that this process may use. Asked in a process of its own, since who asks takes some of it."""
    code = (
        "import torch.cuda as gpus\n"
        "for each in range(gpus.device_count()): print(gpus.get_device_properties(each).total_memory)"
    )
    try:
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    except subprocess.CalledProcessError as error:
        raise UsageError(
            "planning.gpus-unreadable", f"cannot read how much memory the GPUs have: {error.stderr[-300:]}"
        ) from None
    return tuple(map(int, said.stdout.split()))


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes of the machine's memory, or of the container's, that may be used now; None where that is not known.

    What the kernel takes back as it needs it, such as files that were read, counts as available.
    """
    found = [*_available(root / "proc/meminfo"), *_left_of_limits(root / "sys/fs/cgroup")]
    return min(found, default=None)


def _available(meminfo: Path) -> list[int]:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:  # not Linux
        return []
    return [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]


def _left_of_limits(groups: Path) -> list[int]:
    """What the limits of version 1 and 2 of control groups leave, where there are any."""
    left = []
    for place, limit, used, cache in (
        (groups, "memory.max", "memory.current", "inactive_file"),
        (groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, now = int((place / limit).read_text()), int((place / used).read_text())
            kinds = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such version, or "max": no limit
            continue
        left.append(max(0, most - now + int(kinds.get(cache, 0))))
    return left


def allocate_gpus(gpus: Sequence[str], processes: int, servers: int) -> GpuAllocation:
    """The first for the trainers, one each, and of the rest the same power of two for each server. Where fewer are left
    than servers, these share them; and where none is left, the trainers', from the last.

    Raises:
        UsageError: there are fewer than processes.
    """
    if not gpus:
        return GpuAllocation((), ((),) * servers)
    if len(gpus) < processes:
        raise UsageError(
            "planning.too-few-gpus",
            f"{processes} trainers need a GPU each: found {len(gpus)}; set optimizer.processes to at most {len(gpus)}",
        )
    trainers, rest = tuple(gpus[:processes]), tuple(gpus[processes:])
    if servers and len(rest) >= servers:
        each = 1 << ((len(rest) // servers).bit_length() - 1)
        return GpuAllocation(trainers, tuple(rest[number * each :][:each] for number in range(servers)))
    shared = rest or trainers[::-1]
    return GpuAllocation(trainers, tuple((shared[number % len(shared)],) for number in range(servers)))
