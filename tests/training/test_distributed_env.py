"""Several machines that share a run: their environment variables, rendezvous and heartbeats."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from gumshoe.training.launch.distributed_env import RUN_ENDED, DistributedEnv
from tests.conftest import find_free_port
from tests.errors import raises

PLACE = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "node-0", "PET_MASTER_PORT": "29400"}


def test_the_environment_is_read() -> None:
    assert (
        DistributedEnv.from_environ({})
        == DistributedEnv.from_environ({"PET_NNODES": "1", "PET_MASTER_ADDR": "x"})
        == DistributedEnv()
    )
    node = DistributedEnv.from_environ(PLACE | {"PET_NPROC_PER_NODE": "4"})
    assert node == DistributedEnv(1, 2, "node-0", 29400, 4)
    assert DistributedEnv.from_environ(PLACE | {"PET_NPROC_PER_NODE": "auto"}).trainers is None
    assert node.local_processes(8) == 4
    variables = node.process_environment(3, 8, node.port)
    assert {name: variables[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")} == {
        "RANK": "7",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
    }
    assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("node-0", "29400")


@pytest.mark.parametrize(
    ("changed", "code", "value"),
    [
        ({"PET_NNODES": "two"}, "training.invalid-node-environment", "PET_NNODES is two"),
        ({"PET_MASTER_PORT": ""}, "training.invalid-node-environment", "PET_NNODES is 2"),
        ({"PET_NODE_RANK": "2"}, "training.invalid-node-rank", "from 0 to 1"),
    ],
)
def test_an_invalid_environment_is_rejected(changed: dict[str, str], code: str, value: str) -> None:
    with raises(code, value):
        DistributedEnv.from_environ(PLACE | changed)


@pytest.mark.parametrize(("processes", "trainers", "wanted"), [(1, None, 2), (3, None, 2), (8, 2, 4)])
def test_trainers_must_be_split_evenly(processes: int, trainers: int | None, wanted: int) -> None:
    with raises("training.unequal-nodes", f"is {processes} for 2 machines", f"to {wanted}"):
        DistributedEnv(0, 2, "node-0", 1, trainers).local_processes(processes)


JOIN_SCRIPT = """
import sys, time
from gumshoe.training.launch import rendezvous
from gumshoe.training.launch.trainer_process import run_with_exit_status

rendezvous._TIMEOUT = float(sys.argv[3])

def join():
    with rendezvous.join_run(float(sys.argv[1]), sys.argv[2]) as spec:
        print(spec, flush=True)
        if spec != "over":
            time.sleep(60)

from pathlib import Path
run_with_exit_status(join, Path("/"))
"""


def start_trainer(rank: int, port: int, seconds: float, spec: str, timeout: float = 60) -> subprocess.Popen[str]:
    """Start one of two trainers on two machines, which prints the specification that it receives."""
    place = DistributedEnv(rank, 2, "127.0.0.1", port).process_environment(0, 2, port)
    command = [sys.executable, "-c", JOIN_SCRIPT, str(seconds), spec, str(timeout)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env={**os.environ, **place}, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.nightly
@pytest.mark.parametrize(("gone", "how"), [(0, signal.SIGSTOP), (1, signal.SIGKILL)])
def test_a_lost_or_hanging_trainer_ends_the_other(gone: int, how: signal.Signals) -> None:
    port = find_free_port()
    both = [start_trainer(rank, port, 90, f"from {rank}", 60 if rank == gone else 6) for rank in (0, 1)]
    try:
        heard = [each.stdout.readline() for each in both if each.stdout is not None]
        assert heard == ["from 0\n"] * 2, "the first one decides"
        both[gone].send_signal(how)
        _, printed = both[1 - gone].communicate()
        assert both[1 - gone].returncode == 75
        assert "[training.trainer-lost]" in printed
    finally:
        for each in both:
            each.kill()
            each.communicate()


@pytest.mark.nightly
def test_waiting_for_a_missing_trainer_has_a_deadline() -> None:
    alone = start_trainer(1, find_free_port(), 2, "")
    _, printed = alone.communicate()
    assert alone.returncode == 75
    assert "[training.trainers-missing]" in printed
    assert "127.0.0.1 within 2 seconds" in " ".join(printed.split())


@pytest.mark.nightly
def test_other_machines_learn_that_a_run_has_finished() -> None:
    port = find_free_port()
    other = start_trainer(1, port, 60, "")
    with ThreadPoolExecutor(1) as thread:
        announcing = thread.submit(DistributedEnv(0, 2, "127.0.0.1", port).announce_end, 2)
        printed, errors = other.communicate()
        announcing.result()
    assert (other.returncode, printed) == (0, f"{RUN_ENDED}\n"), errors
