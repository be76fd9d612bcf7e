"""The allocation of GPUs to trainers and servers."""

from pathlib import Path

import pytest

from gumshoe.training.planning.gpu_allocation import GpuAllocation, allocate_gpus, available_processors
from tests.errors import raises


@pytest.mark.parametrize(
    ("gpus", "processes", "trainers", "servers", "memory"),
    [
        ("", 1, "", [""], 0.9),
        ("0", 1, "0", ["0"], 0.45),
        ("01", 1, "0", ["1"], 0.9),
        ("01", 2, "01", ["1"], 0.45),
        ("0123", 1, "0", ["12"], 0.9),
        ("01234567", 4, "0123", ["4567"], 0.9),
        ("01234567", 1, "0", ["1234"], 0.9),
        ("", 1, "", ["", ""], 0.9),
        ("0123", 2, "01", ["2", "3"], 0.9),
        ("01234567", 1, "0", ["12", "34", "56"], 0.9),
        ("0123", 4, "0123", ["3", "2"], 0.45),
        ("012", 2, "01", ["2", "2"], 0.45),
        ("0", 1, "0", ["0", "0"], 0.225),
    ],
)
def test_trainers_get_one_gpu_each_and_servers_equal_parts_of_the_rest(
    gpus: str, processes: int, trainers: str, servers: list[str], memory: float
) -> None:
    allocation = allocate_gpus(gpus, processes, len(servers))
    assert allocation == GpuAllocation(tuple(trainers), tuple(map(tuple, servers)))
    assert allocation.server_memory_share == memory
    for number, each in enumerate(servers):
        wanted = ("--tensor-parallel-size", str(len(each))) if len(each) > 1 else ()
        assert allocation.server_arguments(number) == wanted


@pytest.mark.parametrize(
    ("gpus", "heads", "each"),
    [
        (9, (32, 8), 8),
        (9, (28, 4), 4),  # Qwen2.5-7B
        (5, (14, 2), 2),  # Qwen2.5-0.5B
        (9, (9, 3), 1),  # SmolLM2-135M
        (9, (40, 10), 2),  # Phi-4
        (9, (64, 2), 8),  # four GPUs have copies of the same keys and values
        (9, (16, 1), 8),
    ],
)
def test_attention_is_divided_equally_among_the_gpus_of_a_server(gpus: int, heads: tuple[int, int], each: int) -> None:
    assert [len(found) for found in allocate_gpus([*map(str, range(gpus))], 1, 1, heads).servers] == [each]


def test_each_process_sees_only_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    allocation = allocate_gpus(["GPU-a", "GPU-b", "GPU-c", "GPU-d"], 2, 2)
    assert allocation.trainers_environment() == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert [allocation.server_environment(each) for each in (0, 1)] == [
        {"CUDA_VISIBLE_DEVICES": "GPU-c"},
        {"CUDA_VISIBLE_DEVICES": "GPU-d"},
    ]
    without = allocate_gpus([], 2, 1)
    assert (without.trainers_environment(), without.server_environment(0)) == ({}, {})
    assert allocate_gpus(["0", "1"], 1, 0).servers == ()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("gumshoe.training.planning.gpu_allocation.available_processors", lambda: 8)
    assert allocate_gpus([], 1, 2).server_environment(1) == {"OMP_NUM_THREADS": "4"}


def test_processors_respect_affinity_and_container_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 2, 4, 6, 8, 10}, raising=False)
    assert available_processors(tmp_path) == 6
    groups = tmp_path / "sys/fs/cgroup"
    groups.mkdir(parents=True)
    for limit, wanted in (("max 100000", 6), ("250000 100000", 2), ("50000 100000", 1), ("6400000 100000", 6)):
        (groups / "cpu.max").write_text(f"{limit}\n")
        assert available_processors(tmp_path) == wanted


def test_fewer_gpus_than_trainers_are_rejected() -> None:
    with raises("planning.too-few-gpus", "3 trainers", "optimizer.processes", "at most 2"):
        allocate_gpus(["0", "1"], 3, 1)


@pytest.mark.parametrize(
    ("gpus", "processes", "servers", "given", "refused"),
    [
        ("01", 1, 1, 1.0, ""),
        ("0", 1, 1, 0.99, ""),
        ("0", 1, 1, 1.0, "1 vLLM server and a trainer"),
        ("01", 1, 2, 0.5, ""),
        ("01", 1, 2, 0.6, "2 vLLM servers on one GPU"),
        ("012", 1, 2, 1.0, ""),
        ("01", 2, 4, 0.6, "2 vLLM servers and a trainer"),
        ("0", 1, 8, None, ""),
    ],
)
def test_shares_above_one_gpu_are_rejected(
    gpus: str, processes: int, servers: int, given: float | None, refused: str
) -> None:
    allocation = allocate_gpus(gpus, processes, servers)
    if not refused:
        allocation.check_memory(given)
        return
    with raises("planning.gpu-overcommitted", f"rollouts.gpu_memory {given:g}", refused):
        allocation.check_memory(given)
