"""Training runs that are killed at random, stopped, or lose their disk space or judge; each is resumed."""

import json
import os
import random
import re
import secrets
import signal
import subprocess
from pathlib import Path

import httpx
import psutil
import pytest

from gumshoe.artifacts.storage import lock_directory
from gumshoe.inference.vllm_server import is_vllm_installed
from gumshoe.training.records import end_message, read_records
from tests.conftest import find_free_port, kill_tree, skip_missing
from tests.inference.fake_vllm import FakeVLLM, status
from tests.integration.trainings import (
    ForkedTrainer,
    assert_same_weights,
    command,
    evaluations_of,
    scenarios_of_first_draws,
    spec_of,
    start,
    steps_of,
    train,
)
from tests.rewards.chat_judge import says, verdict
from tests.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.group("training"), pytest.mark.timeout(1200)]

_LONGEST = {"transformers": 45, "vllm": 90}  # seconds until a run is killed


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_run_killed_at_any_time_can_be_resumed(
    engine: str, uninterrupted: tuple[Path, str], training_mail: Path, tmp_path: Path
) -> None:
    """The time is random, from the first import to the last checkpoint; GUMSHOE_TEST_SEED repeats the printed seed.

    With vLLM, the run has its own server, which is killed too.
    """
    if engine == "vllm" and not is_vllm_installed():
        skip_missing("vLLM (the CPU build comes with `make install` on Linux)")
    seed = int(os.environ.get("GUMSHOE_TEST_SEED") or secrets.randbits(32))
    print(f"GUMSHOE_TEST_SEED={seed}")
    out, log = tmp_path / "run", tmp_path / "log"
    words = [*command(training_mail, out, "--engine", engine), "--resume"]
    process = start(words, log)
    try:
        process.wait(timeout=random.Random(seed).uniform(0, _LONGEST[engine]))
    except subprocess.TimeoutExpired:
        kill_tree(process)
    train(words, log)
    assert [each.step for each in steps_of(out)] == [1, 2, 3], seed
    assert scenarios_of_first_draws(out) == scenarios_of_first_draws(uninterrupted[0]), seed
    if engine == "transformers":
        assert_same_weights(out / "final", uninterrupted[0] / "final")


def test_a_run_waits_for_the_trainer_of_a_killed_command(
    uninterrupted: tuple[Path, str], training_mail: Path, tmp_path: Path
) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    words = [*command(training_mail, out, "--engine", "transformers"), "--resume"]
    process = start(words, log)
    wait_until(lambda: len(psutil.Process(process.pid).children(recursive=True)) == 2, process, log.read_text)
    reaper, trainer = psutil.Process(process.pid).children(recursive=True)
    trainer.suspend()
    process.kill()
    process.wait()
    with lock_directory(out, None) as lock:
        assert lock is None
    trainer.resume()
    reaper.wait()
    train(words, log)
    assert_same_weights(out / "final", uninterrupted[0] / "final")


def test_a_stopped_run_saves_a_checkpoint(uninterrupted: tuple[Path, str], training_mail: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    words = command(training_mail, out, "--engine", "transformers", output__save_steps=100)
    port = find_free_port()
    process = start(words, log, METRICS_PORT=str(port))
    wait_until(lambda: len(steps_of(out)) == 1, process, log.read_text)

    def metrics() -> str:
        return httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=60).text

    wait_until(lambda: f"gumshoe_training_step {len(steps_of(out))}.0" in metrics(), process, log.read_text)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 75
    text = log.read_text().rstrip()
    assert "[training.stopped]" in text, "error of the trainer"
    assert text.endswith("[training.interrupted]"), "error of the command"
    assert [each.name for each in out.glob("checkpoint-*")] in (["checkpoint-1"], ["checkpoint-2"])
    train([*words, "--resume"], log)
    assert_same_weights(out / "final", uninterrupted[0] / "final")


def end_message_of(out: Path, target_accuracy: float | None, patience: int | None) -> str:
    """Return the message of early stopping for a run's evaluations."""
    message = end_message(evaluations_of(out), target_accuracy, patience)
    assert message is not None
    return message


def test_early_stopping_by_patience_and_target(training_mail: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    idle = {"optimizer__learning_rate": 0, "evaluation__eval_steps": 1}
    impatient = spec_of(training_mail, out, **idle, evaluation__patience=1, output__verbose=True)
    text = ForkedTrainer(impatient, log).finish()
    assert end_message_of(out, None, 1) in text
    assert re.search(r"^  reward \S+ search_inbox [+-]\d\.\d\d", text, re.M), "the advantages by turn"
    content = spec_of(training_mail, out, **idle, evaluation__target_accuracy=0.01)
    again = content.model_copy(update={"attempt": 2, "resume": True})
    text = ForkedTrainer(again, log).finish()
    assert end_message_of(out, 0.01, None) in text
    assert [each.step for each in steps_of(out)] == [1]
    assert (out / "final" / "adapter_model.safetensors").exists()


def test_a_run_whose_judge_fails_saves_a_checkpoint(training_mail: Path, tmp_path: Path) -> None:
    """During steps, it only warns. A failed evaluation ends the run, which can be resumed."""
    out, log = tmp_path / "run", tmp_path / "log"
    with FakeVLLM(chat=says(verdict)) as judge:
        asked = {"evaluation__judge": f"openai:base@{judge.address}/v1", "evaluation__baseline": False}
        spec = spec_of(training_mail, out, **asked, optimizer__max_steps=2, output__save_steps=100)
        judge.inject(status(400), times=None)
        assert ForkedTrainer(spec, log, OPENAI_API_KEY="none").wait() == 75, log.read_text()[-3000:]
        assert [each.accuracy for each in steps_of(out)] == [None, None]
        assert [each.name for each in out.glob("checkpoint-*")] == ["checkpoint-2"]
        judge.heal()
        again = spec.model_copy(update={"attempt": 2, "resume": True})
        ForkedTrainer(again, log, OPENAI_API_KEY="none").finish()
    assert [(each.event, each.step) for each in read_records(out / "metrics.jsonl")] == [
        ("step", 1),
        ("step", 2),
        ("evaluation", 2),
    ]
    assert (out / "final" / "adapter_model.safetensors").exists()


def test_a_full_disk_is_reported_and_loses_no_checkpoint(
    uninterrupted: tuple[Path, str], training_mail: Path, small_disk: Path, tmp_path: Path
) -> None:
    out, log = small_disk / "run", tmp_path / "log"
    spec = spec_of(training_mail, out)
    assert ForkedTrainer(spec, log).wait() == 75, log.read_text()[-3000:]
    assert "[training.disk-full]" in log.read_text()
    assert re.search(rf"{re.escape(str(out))} .*[\d,]+ KiB", log.read_text())
    subprocess.run(["mount", "-o", "remount,size=200m", small_disk], check=True)
    ForkedTrainer(spec.model_copy(update={"attempt": 2, "resume": True}), log).finish()
    assert_same_weights(out / "final", uninterrupted[0] / "final")
    assert [each.step for each in steps_of(out)] == [1, 2, 3]
    assert json.loads((out / "run.json").read_text())["attempt"] == 2
