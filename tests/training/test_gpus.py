"""How GPUs are shared out among trainers and the server."""

import pytest

from gumshoe.errors import UsageError
from gumshoe.training.gpus import Shares, share_out


@pytest.mark.parametrize(
    ("gpus", "processes", "trainers", "server", "memory"),
    [
        ("", 1, "", "", 0.9),
        ("0", 1, "0", "0", 0.45),
        ("01", 1, "0", "1", 0.9),
        ("01", 2, "01", "1", 0.45),
        ("0123", 1, "0", "12", 0.9),
        ("01234567", 4, "0123", "4567", 0.9),
        ("01234567", 1, "0", "1234", 0.9),
    ],
)
def test_trainers_have_one_each_and_the_server_what_is_left(
    gpus: str, processes: int, trainers: str, server: str, memory: float
) -> None:
    shares = share_out(gpus, processes, with_server=True)
    assert shares == Shares(tuple(trainers), tuple(server))
    assert shares.memory == memory
    assert shares.server_arguments() == (("--tensor-parallel-size", str(len(server))) if len(server) > 1 else ())


def test_each_sees_its_own_alone() -> None:
    shares = share_out(["GPU-a", "GPU-b", "GPU-c"], 2, with_server=True)
    assert shares.trainers_environment() == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}
    assert shares.server_environment() == {"CUDA_VISIBLE_DEVICES": "GPU-c"}
    without = share_out([], 2, with_server=True)
    assert (without.trainers_environment(), without.server_environment()) == ({}, {})
    assert share_out(["0", "1"], 1, with_server=False).server == ()


def test_fewer_gpus_than_trainers_are_refused() -> None:
    with pytest.raises(UsageError, match=r"there are 2 GPUs for 3 trainers; set optimizer\.processes to no more"):
        share_out(["0", "1"], 3, with_server=True)
