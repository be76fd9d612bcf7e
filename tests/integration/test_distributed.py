"""Training with several trainers, machines and servers: the steps equal those of one trainer."""

import json
import re
from pathlib import Path

import httpx
import pytest

from gumshoe.artifacts.store import Store
from gumshoe.inference.vllm_server import is_vllm_installed
from tests.conftest import find_free_port, skip_missing
from tests.integration.trainings import (
    STEPS,
    command,
    find_processes,
    load_update,
    scenarios_of_first_draws,
    start,
    steps_of,
    train,
)
from tests.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.group("training"), pytest.mark.timeout(1200)]

TWO = {"optimizer__processes": 2, "optimizer__gradient_accumulation_steps": 1, "evaluation__baseline": False}
"""Settings for two trainers with the same steps as one."""


def assert_equals_one_trainer(out: Path, uninterrupted: Path) -> None:
    """Check that a run had the same episodes, losses, gradients and weights as the run of one trainer."""
    for one, two in zip(steps_of(uninterrupted), steps_of(out), strict=True):
        for name in ("step", "trainable_tokens", "tokens", "reward", "endings", "groups", "groups_wanted"):
            assert getattr(one, name) == getattr(two, name)
        for name in ("loss", "grad_norm", "importance_ratio", "logprob_difference"):
            assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-3, abs=1e-5)
    mine, theirs = (load_update(each / "final") for each in (uninterrupted, out))
    assert (mine - theirs).abs().mean() < 1e-3 * mine.abs().mean()


def test_two_trainers_equal_one(uninterrupted: tuple[Path, str], training_mail: Path, tmp_path: Path) -> None:
    text = train(command(training_mail, tmp_path / "run", "--engine", "transformers", **TWO), tmp_path / "log")
    assert len(re.findall(r"^Step \d/3 ", text, re.M)) == STEPS, "one process prints"
    assert_equals_one_trainer(tmp_path / "run", uninterrupted[0])


def test_two_machines_equal_one(uninterrupted: tuple[Path, str], training_mail: Path, tmp_path: Path) -> None:
    """Each machine has its own directory. The run is resumed from the store, on machines without files."""

    def run(steps: int, *places: Path) -> None:
        port = str(find_free_port())
        more = {**TWO, "optimizer__max_steps": steps, "output__checkpoints": f"file://{tmp_path / 'store'}"}
        machines = []
        for rank, place in enumerate(places):
            words = command(training_mail, place, "--engine", "transformers", "--resume", **more)
            here = {"PET_NNODES": "2", "PET_NODE_RANK": str(rank), "PET_MASTER_ADDR": "127.0.0.1"}
            machines.append(
                start(words, tmp_path / f"{rank}.log", PET_MASTER_PORT=port, PET_NPROC_PER_NODE="1", **here)
            )
        logs = [(tmp_path / f"{rank}.log") for rank in (0, 1)]
        ended = [each.wait() for each in machines]
        assert ended == [0, 0], "".join(each.read_text()[-3000:] for each in logs)

    run(2, tmp_path / "first", tmp_path / "second")
    run(STEPS, tmp_path / "new first", tmp_path / "new second")
    spec = (tmp_path / "new first" / "run.json").read_bytes()
    run(STEPS, tmp_path / "new first", tmp_path / "new second")
    assert (tmp_path / "new first" / "run.json").read_bytes() == spec, "a finished run is not started again"
    assert_equals_one_trainer(tmp_path / "new first", uninterrupted[0])
    assert not any(each.is_file() for each in (tmp_path / "new second").rglob("*"))
    (sent, *_) = Store(f"file://{tmp_path / 'store'}").list("checkpoints")
    assert any(each.path.endswith("rng_state_1.pth") for each in sent.files), "files of the second machine"


def test_a_run_survives_killed_servers_and_trainers(
    uninterrupted: tuple[Path, str], training_mail: Path, tmp_path: Path
) -> None:
    """The test needs its own servers, to kill one.

    The server is restarted during the run, which waits only until the next adapter is loaded. If a trainer is killed,
    the run exits with 75, and is resumed to the end.
    """
    if not is_vllm_installed():
        skip_missing("vLLM (the CPU build comes with `make install` on Linux)")
    out, log = tmp_path / "run", tmp_path / "log"
    words = command(training_mail, out, **TWO, rollouts__num_servers=2)
    process = start(words, log)
    try:
        wait_until(lambda: len(steps_of(out)) == 1, process, log.read_text)
        find_processes(process, "vllm.entrypoints")[-1].kill()
        wait_until(lambda: len(steps_of(out)) == 2, process, log.read_text)
        assert re.search(r"warning: vLLM \d\b", log.read_text())
        find_processes(process, "gumshoe.training.grpo.run")[1].kill()
        assert process.wait() == 75, log.read_text()[-3000:]
    finally:
        process.kill()
    train([*words, "--resume"], log)
    found = steps_of(out)
    assert [each.step for each in found] == [1, 2, 3]
    policies = [each.policy for each in found]
    run = json.loads((out / "run.json").read_text())
    saved = 1 if f"r{run['run']}-2-policy-1" in policies else 2  # steps in the last checkpoint before the kill
    assert policies == [f"r{run['run']}-{1 if step < saved else 2}-policy-{step}" for step in range(3)]
    assert scenarios_of_first_draws(out) == scenarios_of_first_draws(uninterrupted[0])
    assert all(each.logprob_difference < 1e-3 for each in found)
    assert (out / "vllm-1.log").exists()
    assert (out / "vllm-2.log").exists()
    for url in run["urls"]:
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
