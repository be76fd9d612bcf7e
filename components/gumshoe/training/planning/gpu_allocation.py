"""Allocate GPUs to trainers and servers, and read how much memory and how many processors the machine has."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gumshoe.errors import UsageError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ALONE, _SHARED = 0.9, 0.45  # share of a GPU's memory for servers, without and with a trainer on it


@dataclass(frozen=True, slots=True)
class GpuAllocation:
    """The GPUs of trainers and servers, by name or number; all tuples are empty on a machine without GPUs."""

    trainers: tuple[str, ...]
    """One GPU per trainer process."""
    servers: tuple[tuple[str, ...], ...]
    """The GPUs of each server, a power of two of them, for tensor parallelism."""

    @property
    def max_servers_per_gpu(self) -> int:
        """Maximum number of servers on one GPU."""
        return max(Counter(gpu for each in self.servers for gpu in each).values(), default=1)

    @property
    def server_memory_share(self) -> float:
        """Share of a GPU's memory for each server, if the settings give none."""
        return (_SHARED if self._are_shared else _ALONE) / self.max_servers_per_gpu

    @property
    def _are_shared(self) -> bool:
        """True if servers use GPUs of trainers."""
        return any(set(self.trainers) & set(each) for each in self.servers)

    def check_memory(self, given: float | None) -> None:
        """Check that the shares `given` to each server fit into the memory of a GPU.

        Raises:
            UsageError: they need more than all of it, or leave nothing for a trainer.
        """
        taken = (given or 0.0) * self.max_servers_per_gpu
        if taken > 1 or (taken == 1 and self._are_shared):
            beside = " and a trainer" * self._are_shared
            raise UsageError(
                "planning.gpu-overcommitted",
                f"rollouts.gpu_memory {given:g} is too much for {self.max_servers_per_gpu} vLLM server"
                f"{'s' * (self.max_servers_per_gpu > 1)}{beside} on one GPU: their shares must add up to at most 1; "
                "lower or unset it, or lower rollouts.num_servers",
            )

    def trainers_environment(self) -> dict[str, str]:
        """Return the environment variables of the trainers."""
        return {VISIBLE: ",".join(self.trainers)} if self.trainers else {}

    def server_environment(self, number: int) -> dict[str, str]:
        """Return the environment variables of one server; without GPUs, several servers share the CPU threads."""
        if self.servers[number]:
            return {VISIBLE: ",".join(self.servers[number])}
        return {"OMP_NUM_THREADS": threads_per_process(len(self.servers))} if len(self.servers) > 1 else {}

    def server_arguments(self, number: int) -> tuple[str, ...]:
        """Return the command-line arguments of one server."""
        gpus = len(self.servers[number])
        return ("--tensor-parallel-size", str(gpus)) if gpus > 1 else ()


def threads_per_process(processes: int) -> str:
    """Return the number of CPU threads for each of these processes, as a value of OMP_NUM_THREADS."""
    return os.environ.get("OMP_NUM_THREADS") or str(max(1, available_processors() // processes))


def available_processors(root: Path = Path("/")) -> int:
    """Return the number of processors that this process or its container may use, at least 1."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(found, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup, or "max": no limit
        return found


def visible_gpus() -> tuple[str, ...]:
    """Return the names or numbers of the GPUs that this process may use."""
    import torch

    count = torch.cuda.device_count()
    named = [each for each in os.environ.get(VISIBLE, "").split(",") if each]
    return tuple(named[:count] or map(str, range(count)))


def read_gpu_memory() -> tuple[int, ...]:
    """Return the memory of each GPU that this process may use, in bytes.

    A child process reads it, because a process that initializes CUDA keeps some of the memory.

    Raises:
        UsageError: the memory cannot be read.
    """
    code = (
        "import torch.cuda as gpus\n"
        "for each in range(gpus.device_count()): print(gpus.get_device_properties(each).total_memory)"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    except subprocess.CalledProcessError as error:
        raise UsageError(
            "planning.gpus-unreadable", f"cannot read how much memory the GPUs have: {error.stderr[-300:]}"
        ) from None
    return tuple(map(int, done.stdout.split()))


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the memory that is available now, in bytes, of the machine or the container; None if that is unknown.

    Memory that the kernel can reclaim, such as cached files, counts as available.
    """
    found = [*_read_available(root / "proc/meminfo"), *_read_cgroup_headroom(root / "sys/fs/cgroup")]
    return min(found, default=None)


def _read_available(meminfo: Path) -> list[int]:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:  # not Linux
        return []
    return [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]


def _read_cgroup_headroom(groups: Path) -> list[int]:
    """Return the bytes that are left below the limits of cgroup versions 1 and 2, if there are limits."""
    left = []
    for place, limit, used, cache in (
        (groups, "memory.max", "memory.current", "inactive_file"),
        (groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, now = int((place / limit).read_text()), int((place / used).read_text())
            kinds = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # another version, or "max": no limit
            continue
        left.append(max(0, most - now + int(kinds.get(cache, 0))))
    return left


def allocate_gpus(gpus: Sequence[str], processes: int, servers: int, heads: tuple[int, int] = (0, 0)) -> GpuAllocation:
    """Allocate GPUs: one to each trainer, and the same power of two of the rest to each server.

    `heads` are the numbers of attention heads and of heads of keys and values, which vLLM must be able to divide among
    the GPUs of a server. If fewer GPUs are left than servers, the servers share them. If none is left, they share the
    trainers' GPUs, the last one first.

    Raises:
        UsageError: there are fewer GPUs than trainers.
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
        while not can_divide(*heads, each):
            each //= 2
        return GpuAllocation(trainers, tuple(rest[number * each :][:each] for number in range(servers)))
    shared = rest or trainers[::-1]
    return GpuAllocation(trainers, tuple((shared[number % len(shared)],) for number in range(servers)))


def can_divide(heads: int, kv_heads: int, gpus: int) -> bool:
    """Return True if vLLM can divide attention among GPUs: several may have copies of the same keys and values."""
    return heads % gpus == 0 and (kv_heads % gpus == 0 or gpus % kv_heads == 0)
