"""Several machines that share a run: their places, and how they meet and notice that one is gone."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from gumshoe.training.launch.distributed_env import RUN_ENDED, DistributedEnv
from tests.conftest import free_port
from tests.errors import raises

PLACE = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "node-0", "PET_MASTER_PORT": "29400"}


def test_the_place_of_a_machine_is_what_the_runtime_says() -> None:
    assert (
        DistributedEnv.from_environ({})
        == DistributedEnv.from_environ({"PET_NNODES": "1", "PET_MASTER_ADDR": "x"})
        == DistributedEnv()
    )
    node = DistributedEnv.from_environ(PLACE | {"PET_NPROC_PER_NODE": "4"})
    assert node == DistributedEnv(1, 2, "node-0", 29400, 4)
    assert DistributedEnv.from_environ(PLACE | {"PET_NPROC_PER_NODE": "auto"}).trainers is None
    assert node.local_processes(8) == 4
    told = node.process_environment(3, 8, node.port)
    assert {name: told[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "RANK": "7",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
    }
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("node-0", "29400")


@pytest.mark.parametrize(
    ("changed", "code", "value"),
    [
        ({"PET_NNODES": "two"}, "training.invalid-node-environment", "PET_NNODES is two"),
        ({"PET_MASTER_PORT": ""}, "training.invalid-node-environment", "PET_NNODES is 2"),
        ({"PET_NODE_RANK": "2"}, "training.invalid-node-rank", "from 0 to 1"),
    ],
)
def test_a_place_that_cannot_be_is_refused(changed: dict[str, str], code: str, value: str) -> None:
    with raises(code, value):
        DistributedEnv.from_environ(PLACE | changed)


@pytest.mark.parametrize(("processes", "trainers", "wanted"), [(1, None, 2), (3, None, 2), (8, 2, 4)])
def test_trainers_that_machines_cannot_have_as_many_of_each_are_refused(
    processes: int, trainers: int | None, wanted: int
) -> None:
    with raises("training.unequal-nodes", f"is {processes} for 2 machines", f"to {wanted}"):
        DistributedEnv(0, 2, "node-0", 1, trainers).local_processes(processes)


MEETS = """
import sys, time
from gumshoe.training.launch import rendezvous
from gumshoe.training.launch.trainer_process import run_with_exit_status

rendezvous._TIMEOUT = float(sys.argv[3])

def meet():
    with rendezvous.join_run(float(sys.argv[1]), sys.argv[2]) as spec:
        print(spec, flush=True)
        if spec != "over":
            time.sleep(60)

from pathlib import Path
run_with_exit_status(meet, Path("/"))
"""


def begun(rank: int, port: int, seconds: float, said: str, gone: float = 60) -> subprocess.Popen[str]:
    """One of two trainers on two machines, which says what it hears."""
    place = DistributedEnv(rank, 2, "127.0.0.1", port).process_environment(0, 2, port)
    command = [sys.executable, "-c", MEETS, str(seconds), said, str(gone)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**os.environ, **place}, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.nightly
@pytest.mark.parametrize(("gone", "how"), [(0, signal.SIGSTOP), (1, signal.SIGKILL)])
def test_who_waits_for_one_that_is_gone_or_hangs_ends_with_75(gone: int, how: signal.Signals) -> None:
    port = free_port()
    both = [begun(rank, port, 90, f"from {rank}", 60 if rank == gone else 6) for rank in (0, 1)]
    try:
        heard = [each.stdout.readline() for each in both if each.stdout is not None]
        assert heard == ["from 0\n"] * 2, "the first says what it is"
        both[gone].send_signal(how)
        _, said = both[1 - gone].communicate()
        assert both[1 - gone].returncode == 75
        assert "[training.trainer-lost]" in said
    finally:
        for each in both:
            each.kill()
            each.communicate()


@pytest.mark.nightly
def test_one_that_does_not_come_is_waited_for_no_longer_than_is_set() -> None:
    alone = begun(1, free_port(), 2, "")
    _, said = alone.communicate()
    assert alone.returncode == 75
    assert "[training.trainers-missing]" in said
    assert "127.0.0.1 within 2 seconds" in " ".join(said.split())


@pytest.mark.nightly
def test_the_others_hear_that_a_run_is_at_its_end() -> None:
    port = free_port()
    other = begun(1, port, 60, "")
    with ThreadPoolExecutor(1) as thread:
        telling = thread.submit(DistributedEnv(0, 2, "127.0.0.1", port).announce_end, 2)
        printed, said = other.communicate()
        telling.result()
    assert (other.returncode, printed) == (0, f"{RUN_ENDED}\n"), said
