"""`gumshoe train` as a user runs it, on the tiny policy: every mode, killed and taken up again, with a real server."""

import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from gumshoe.agent.policies import TINY
from gumshoe.agent.transformers_policy import TransformersPolicy
from gumshoe.agent.vllm_server import is_installed
from gumshoe.artifacts.storage import directory_lock
from gumshoe.artifacts.store import Store
from gumshoe.mail.build import build_index
from gumshoe.mail.index import MailIndex
from gumshoe.scenarios.lineage import Lineage
from gumshoe.synthesis.mail import synthesize_mail, write_mail
from gumshoe.training import supervisor
from gumshoe.training.records import EvaluationRecord, StepRecord, read_records
from gumshoe.training.spec import Metadata
from tests.agent.fake_vllm import FakeVLLM, status
from tests.conftest import Ran, free_port, killed, missing
from tests.rewards.chat_judge import by_length, says, verdict

pytestmark = pytest.mark.timeout(600)

STEPS = 3
SMALL = {
    "rollouts.num_generations": 4,
    "rollouts.temperature": 2,  # as configs/tiny.yaml has it: at 1 the answers to one question are much the same
    "optimizer.per_device_train_batch_size": 4,
    "optimizer.gradient_accumulation_steps": 2,
    "optimizer.learning_rate": 1e-3,
    "optimizer.max_steps": STEPS,
    "rollouts.max_tokens": 100,
    "rollouts.max_turns": 4,
    "rollouts.draws": 2,
    "data.eval_size": 4,
    "model.gradient_checkpointing": "false",
    "optimizer.beta": 0.01,
    "evaluation.eval_steps": 2,
    "output.save_steps": 1,
    "output.report_to": "[]",
}
_LONGEST = {"transformers": 45, "vllm": 90}  # seconds until a run is killed
LINE = re.compile(
    r"Step (\d+)/3 \| Loss -?[\d.]+ \| Policy -?[\d.]+ \| KL [\d.]+ \| Reward -?[\d.]+ ± [\d.]+ \| Acc [\d.]+% \| "
    r"Trainable [\d,]+/[\d,]+ \([\d.]+%\) \| groups \d/2 \| rollout [\d.]+s train [\d.]+s \| ETA \d:\d\d:\d\d"
)


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mail")
    write_mail(synthesize_mail(8, 6, 900, "easy"), directory)
    build_index([f"jsonl:{directory / 'mail.jsonl'}"], directory / "index")
    return directory


def command(mail: Path, out: Path, *more: str, **settings: Any) -> list[str]:
    changed = {**SMALL, **{name.replace("__", "."): value for name, value in settings.items()}}
    sets = [each for name, value in changed.items() for each in ("--set", f"{name}={value}")]
    where = ["--index", str(mail / "index"), "--scenarios", str(mail / "scenarios.jsonl"), "--out", str(out)]
    return [sys.executable, "-m", "gumshoe", "train", "--model", "tiny", *where, *sets, *more]


def begun(words: list[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(words, stdout=file, stderr=file, env={**os.environ, "COLUMNS": "200", **environment})


def trained(words: list[str], log: Path, **environment: str) -> str:
    """Run to the end, which is to be a good one; what was printed."""
    status = begun(words, log, **environment).wait(timeout=500)
    text = log.read_text()
    assert status == 0, text[-3000:]
    return text


def until(look: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for something that a run does."""
    started = time.monotonic()
    while not look():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() - started < 300
        time.sleep(0.05)


def weights(directory: Path) -> dict[str, Any]:
    return dict(load_file(directory / "adapter_model.safetensors"))


def steps_of(out: Path) -> list[StepRecord]:
    return [each for each in read_records(out / "metrics.jsonl") if isinstance(each, StepRecord)]


def drawn_first(out: Path) -> list[tuple[str, ...]]:
    """What each step of two groups worked on first, whatever taught nothing."""
    return [each.scenarios[:2] for each in steps_of(out)]


@pytest.fixture(scope="module")
def undisturbed(mail: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run in this process from start to end, and what it printed."""
    out = tmp_path_factory.mktemp("undisturbed")
    words = command(mail, out / "run", "--engine", "transformers", output__report_to="[tensorboard]")
    return out / "run", trained(words, out / "log")


def test_a_run_says_how_it_goes_and_leaves_what_it_learned(undisturbed: tuple[Path, str], mail: Path) -> None:
    out, text = undisturbed
    assert [int(each) for each in LINE.findall(text)] == [1, 2, 3]
    records = read_records(out / "metrics.jsonl")
    assert [(each.event, each.step) for each in records] == [
        ("evaluation", 0),
        ("step", 1),
        ("step", 2),
        ("evaluation", 2),
        ("step", 3),
        ("evaluation", 3),
    ]
    for step in steps_of(out):
        assert step.importance_ratio == pytest.approx(1, abs=1e-3)
        assert step.groups + step.groups_dropped <= step.groups_wanted
        assert 0 < step.trainable_tokens < step.tokens / 3
    first, *_, last = (each for each in records if isinstance(each, EvaluationRecord))
    assert (first.beat_rate, last.questions) == (None, 4)
    for name in ("final", "checkpoint-3", "best_model"):
        metadata = Metadata.model_validate_json((out / name / "metadata.json").read_bytes())
        assert metadata.versions["trl"]
        assert metadata.searched == MailIndex(mail / "index").stats()["content"]
        assert {event: record["step"] for event, record in metadata.metrics.items()} == {
            "step": metadata.step,
            "evaluation": 2 if metadata.step == 2 else 3,
        }
        lineage = Lineage.read(out / name)
        assert lineage is not None
        assert len(lineage.learned_from.ids) > 20
        TransformersPolicy(TINY, out / name)
    (board,) = (out / "runs").iterdir()
    told = EventAccumulator(str(board)).Reload()
    assert {"train/loss", "train/step/accuracy", "train/step/rewards/rubric", "train/evaluation/accuracy"} <= set(
        told.Tags()["scalars"]
    )
    assert [each.step for each in told.Scalars("train/evaluation/accuracy")] == [0, 2, 3]
    assert "control_reward_map" in json.loads((out / "baseline.json").read_text())
    assert (out / "plots.html").stat().st_size > 100_000
    assert len(list((out / "plots").glob("*.png"))) == 9


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_goes_on_as_the_undisturbed_one_would(
    undisturbed: tuple[Path, str], mail: Path, tmp_path: Path
) -> None:
    """In the middle of rollouts, while it writes a checkpoint, and then the command alone, whose trainer is slow to
    end: nobody else may begin there meanwhile."""
    out, log = tmp_path / "run", tmp_path / "log"
    words = [*command(mail, out, "--engine", "transformers"), "--resume"]
    moments: list[Callable[[], bool]] = [lambda: len(steps_of(out)) == 1, lambda: (out / "checkpoint-2").exists()]
    for reached in moments:
        process = begun(words, log)
        until(reached, process, log)
        killed(process)
        assert not (out / "final").exists()
    process = begun(words, log)
    until(lambda: len(psutil.Process(process.pid).children(recursive=True)) == 2, process, log)
    guardian, trainer = psutil.Process(process.pid).children(recursive=True)
    trainer.suspend()
    process.kill()
    process.wait()
    with directory_lock(out, None) as lock:
        assert lock is None
    trainer.resume()
    guardian.wait(60)
    trained(words, log)
    assert json.loads((out / "run.json").read_text())["attempt"] == 4
    mine, theirs = weights(out / "final"), weights(undisturbed[0] / "final")
    assert mine.keys() == theirs.keys()
    assert all((mine[name] == theirs[name]).all() for name in mine), "bit for bit"
    assert [each.step for each in steps_of(out)] == [1, 2, 3]
    kept = Store(str(tmp_path / "store"))
    late = [*words, "--set", f"output.checkpoints={kept.uri}"]
    assert trained(late, log).count("This run is at its end") == 1
    (sent,) = kept.list("checkpoints")
    assert {each.path.partition("/")[0] for each in sent.files} >= {"checkpoint-3", "best_model", "final", "run.json"}
    same = ("reward", "reward_std", "tokens", "groups", "endings")
    assert [[getattr(step, name) for name in same] for step in steps_of(out)] == [
        [getattr(step, name) for name in same] for step in steps_of(undisturbed[0])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_run_may_be_killed_at_any_instant(
    engine: str, undisturbed: tuple[Path, str], mail: Path, tmp_path: Path
) -> None:
    """At an instant that no two runs of this test share: from the first import to the last checkpoint."""
    if engine == "vllm" and not is_installed():
        missing("vLLM (the CPU build comes with `make install` on Linux)")
    out, log = tmp_path / "run", tmp_path / "log"
    words = [*command(mail, out, "--engine", engine), "--resume"]
    instant = random.Random(seed := secrets.randbits(32)).uniform(0, _LONGEST[engine])
    process = begun(words, log)
    try:
        process.wait(timeout=instant)
    except subprocess.TimeoutExpired:
        killed(process)
    trained(words, log)
    assert [each.step for each in steps_of(out)] == [1, 2, 3], seed
    assert drawn_first(out) == drawn_first(undisturbed[0]), seed
    if engine == "transformers":
        mine, theirs = weights(out / "final"), weights(undisturbed[0] / "final")
        assert all((mine[name] == theirs[name]).all() for name in mine), seed


@pytest.mark.slow
def test_a_run_ends_early_where_the_environment_says_so(mail: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    idle = {"optimizer__learning_rate": 0, "evaluation__eval_steps": 1}
    words = command(mail, out, "--engine", "transformers", **idle)
    text = trained(words, log, PATIENCE="1", VERBOSE="1")
    assert "No better evaluation in 1; the best was after step 0." in text
    assert re.search(r"^  reward [+-]\d\.\d\d: search_inbox [+-]\d\.\d\d", text, re.M), "the advantages by turn"
    assert "The target of 1.0% is reached." in trained([*words, "--resume"], log, TARGET_ACCURACY="0.01")
    assert [each.step for each in steps_of(out)] == [1]
    assert (out / "final" / "adapter_model.safetensors").exists()


@pytest.mark.slow
def test_a_run_whose_judge_fails_saves_what_it_has(mail: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While steps are taken it is warned of; an evaluation that cannot be made ends the run, till it is taken up."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    out, log = tmp_path / "run", tmp_path / "log"
    with FakeVLLM(chat=says(verdict)) as judge:
        asked = {"evaluation__judge": f"openai:base@{judge.address}/v1", "evaluation__baseline": False}
        more = {"optimizer__max_steps": 2, "output__save_steps": 100}
        words = command(mail, out, "--engine", "transformers", **asked, **more)
        judge.inject(status(400), times=None)
        assert begun(words, log).wait(timeout=200) == 75, log.read_text()[-3000:]
        assert [each.accuracy for each in steps_of(out)] == [None, None]
        assert [each.name for each in out.glob("checkpoint-*")] == ["checkpoint-2"]
        judge.heal()
        trained([*words, "--resume"], log)
    assert [(each.event, each.step) for each in read_records(out / "metrics.jsonl")] == [
        ("step", 1),
        ("step", 2),
        ("evaluation", 2),
    ]
    assert (out / "final" / "adapter_model.safetensors").exists()


@pytest.mark.slow
def test_a_run_that_is_asked_to_end_saves_what_it_has(
    undisturbed: tuple[Path, str], mail: Path, tmp_path: Path
) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    words = command(mail, out, "--engine", "transformers", output__save_steps=100)
    port = free_port()
    process = begun(words, log, METRICS_PORT=str(port))
    until(lambda: len(steps_of(out)) == 1, process, log)

    def told() -> str:
        return httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=60).text

    until(lambda: f"gumshoe_training_step {len(steps_of(out))}.0" in told(), process, log)
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 75
    assert time.monotonic() - started < 25
    assert "go on with --resume" in log.read_text()
    assert [each.name for each in out.glob("checkpoint-*")] in (["checkpoint-1"], ["checkpoint-2"])
    trained([*words, "--resume"], log)
    mine, theirs = weights(out / "final"), weights(undisturbed[0] / "final")
    assert all((mine[name] == theirs[name]).all() for name in mine)


def test_the_mode_rollout_learns_from_injected_tokens_too_here_with_ruler_as_the_reward(
    mail: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its judge is behind a real socket, and scores by length."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    out = tmp_path / "run"
    with FakeVLLM(chat=says(by_length)) as judge:
        model = {"model": "base", "url": f"{judge.address}/v1", "cache": None}
        ruler = json.dumps([{"name": "ruler", "arguments": {"judge": {"model": model}}}])
        more = {"rewards__functions": ruler, "rollouts__groups_per_step": 2, "optimizer__max_steps": 2}
        more |= {"evaluation__eval_steps": 1, "output__save_steps": 100}
        trained(command(mail, out, "--engine", "transformers", "--mode", "rollout", **more), tmp_path / "log")
    found = steps_of(out)
    assert [each.step for each in found] == [1, 2]
    assert len(judge.requests) >= sum(each.groups for each in found) >= 2
    for step in found:
        assert set(step.rewards) == {"ruler"}
        assert 0 < step.reward_quantiles[0] < step.reward_quantiles[-1] <= 1
        assert step.trainable_tokens > step.sampled_tokens * 8, "what was injected counts too"
    assert has_learned(out / "final")
    best = Metadata.model_validate_json((out / "best_model" / "metadata.json").read_bytes()).step
    assert {each.name for each in out.glob("checkpoint-*")} == {f"checkpoint-{best}", "checkpoint-2"}


@pytest.mark.slow
def test_the_mode_simple_learns_from_first_turns_alone(mail: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = {"optimizer__max_steps": 2, "optimizer__gradient_accumulation_steps": 6}  # first turns are much the same
    words = command(mail, out, "--engine", "transformers", "--mode", "simple", **more)
    text = trained(words, tmp_path / "log")
    found = steps_of(out)
    assert [each.step for each in found] == [1, 2]
    assert re.search(r"Step 2/2 \| .* \| Acc - \| Trainable [1-9][\d,]*/[1-9][\d,]* \(.*\| groups \d/6", text)
    assert all(0 < each.trainable_tokens < each.tokens / 3 for each in found)
    assert has_learned(out / "final")


def learned(adapter: Path) -> torch.Tensor:
    """All that was nothing before the first step."""
    return torch.cat([value.flatten() for name, value in sorted(weights(adapter).items()) if "lora_B" in name])


def has_learned(adapter: Path) -> bool:
    return bool(learned(adapter).abs().max() > 0)


TWO = {"optimizer__processes": 2, "optimizer__gradient_accumulation_steps": 1, "evaluation__baseline": False}
"""Two trainers, whose steps are those of one."""


def is_what_one_learned(out: Path, undisturbed: Path) -> None:
    """The same episodes, of different lengths: the same losses, gradients and weights."""
    for one, two in zip(steps_of(undisturbed), steps_of(out), strict=True):
        for name in ("step", "trainable_tokens", "tokens", "reward", "endings", "groups", "groups_wanted"):
            assert getattr(one, name) == getattr(two, name)
        for name in ("loss", "grad_norm", "importance_ratio", "logprob_difference"):
            assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-3, abs=1e-5)
    mine, theirs = (learned(each / "final") for each in (undisturbed, out))
    assert (mine - theirs).abs().mean() < 1e-3 * mine.abs().mean()


@pytest.mark.slow
def test_two_ranks_learn_what_one_would(undisturbed: tuple[Path, str], mail: Path, tmp_path: Path) -> None:
    text = trained(command(mail, tmp_path / "run", "--engine", "transformers", **TWO), tmp_path / "log")
    assert len(re.findall(r"^Step \d/3 ", text, re.M)) == STEPS, "one process speaks"
    is_what_one_learned(tmp_path / "run", undisturbed[0])


@pytest.mark.slow
def test_two_machines_learn_what_one_would(undisturbed: tuple[Path, str], mail: Path, tmp_path: Path) -> None:
    """Each with a directory of its own; they are resumed from the store, where the second machine has nothing."""

    def run(steps: int, *places: Path) -> None:
        port = str(free_port())
        more = {**TWO, "optimizer__max_steps": steps, "output__checkpoints": f"file://{tmp_path / 'store'}"}
        machines = []
        for rank, place in enumerate(places):
            words = command(mail, place, "--engine", "transformers", "--resume", **more)
            here = {"PET_NNODES": "2", "PET_NODE_RANK": str(rank), "PET_MASTER_ADDR": "127.0.0.1"}
            machines.append(
                begun(words, tmp_path / f"{rank}.log", PET_MASTER_PORT=port, PET_NPROC_PER_NODE="1", **here)
            )
        logs = [(tmp_path / f"{rank}.log") for rank in (0, 1)]
        ended = [each.wait(timeout=200) for each in machines]
        assert ended == [0, 0], "".join(each.read_text()[-3000:] for each in logs)

    run(2, tmp_path / "first", tmp_path / "second")
    run(STEPS, tmp_path / "new first", tmp_path / "new second")
    run(STEPS, tmp_path / "new first", tmp_path / "new second")  # at its end
    assert "This run is at its end" in (tmp_path / "0.log").read_text()
    is_what_one_learned(tmp_path / "new first", undisturbed[0])
    assert not any(each.is_file() for each in (tmp_path / "new second").rglob("*"))
    (sent, *_) = Store(f"file://{tmp_path / 'store'}").list("checkpoints")
    assert any(each.path.endswith("rng_state_1.pth") for each in sent.files), "of the second machine"


@pytest.mark.slow
def test_a_full_disk_is_told_of_and_loses_nothing_that_was_saved(
    undisturbed: tuple[Path, str], mail: Path, small_disk: Path, tmp_path: Path
) -> None:
    out, log = small_disk / "run", tmp_path / "log"
    words = command(mail, out, "--engine", "transformers")
    assert begun(words, log).wait(timeout=200) == 75, log.read_text()[-3000:]
    told = " ".join(log.read_text().split())
    assert re.search(r"the disk of \S+ is full \([\d,]+ KiB are free\); make room, and go on with --resume", told)
    subprocess.run(["mount", "-o", "remount,size=200m", small_disk], check=True)
    trained([*words, "--resume"], log)
    mine, theirs = weights(out / "final"), weights(undisturbed[0] / "final")
    assert all((mine[name] == theirs[name]).all() for name in mine)
    assert [each.step for each in steps_of(out)] == [1, 2, 3]


def programs(process: subprocess.Popen[bytes], module: str) -> list[psutil.Process]:
    """What a command started of a module, in the order in which it did, without the guardians."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            words = " ".join(each.cmdline())
            found += [each] * (module in words and "guardian" not in words)
    return found


@pytest.mark.slow
def test_two_trainers_with_two_servers_go_on_after_one_of_either_is_killed(
    undisturbed: tuple[Path, str], mail: Path, tmp_path: Path
) -> None:
    """A server is started again under the run, which waits for nothing but the next adapter's loading; without one of
    its trainers it ends with 75, and is resumed to the end."""
    if not is_installed():
        missing("vLLM (the CPU build comes with `make install` on Linux)")
    out, log = tmp_path / "run", tmp_path / "log"
    words = command(mail, out, **TWO, rollouts__num_servers=2)
    process = begun(words, log)
    try:
        until(lambda: len(steps_of(out)) == 1, process, log)
        programs(process, "vllm.entrypoints")[-1].kill()
        until(lambda: len(steps_of(out)) == 2, process, log)
        assert re.search(r"vLLM \d has ended; starting it again", log.read_text())
        programs(process, "gumshoe.training.run")[1].kill()
        assert process.wait(60) == 75, log.read_text()[-3000:]
    finally:
        process.kill()
    trained([*words, "--resume"], log)
    found = steps_of(out)
    assert [each.step for each in found] == [1, 2, 3]
    policies = [each.policy for each in found]
    run = json.loads((out / "run.json").read_text())
    kept = 1 if f"r{run['run']}-2-policy-1" in policies else 2  # whether the second step's checkpoint was written
    assert policies == [f"r{run['run']}-{1 if step < kept else 2}-policy-{step}" for step in range(3)]
    assert drawn_first(out) == drawn_first(undisturbed[0])
    assert all(each.logprob_difference < 1e-3 for each in found)
    assert (out / "vllm-1.log").exists()
    assert (out / "vllm-2.log").exists()
    for url in run["urls"]:
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_a_run_is_not_begun_over_another_nor_with_settings_that_cannot_be(
    undisturbed: tuple[Path, str], mail: Path, tmp_path: Path
) -> None:
    out, _ = undisturbed
    again = subprocess.run(command(mail, out, "--engine", "transformers"), capture_output=True, text=True, check=False)
    assert (again.returncode, "holds a run; go on with it (--resume)" in " ".join(again.stderr.split())) == (2, True)
    none = subprocess.run(
        command(mail, tmp_path / "new", "--resume", "--engine", "transformers", data__train_size=1),
        capture_output=True,
        text=True,
        check=False,
    )
    assert none.returncode == 2
    assert "there are 1 scenarios to learn from, and a step takes 2" in " ".join(none.stderr.split())
    assert not (tmp_path / "new").exists()
    other = command(mail, out, "--resume", "--engine", "transformers", data__eval_size=3, optimizer__learning_rate=1)
    changed = subprocess.run(other, capture_output=True, text=True, check=False)
    assert changed.returncode == 2
    told = " ".join(changed.stderr.split())
    assert "was begun with other settings (data.eval_size, optimizer.learning_rate, the scenarios)" in told


def test_a_directory_in_which_another_process_is_at_work_is_left_as_it_is(
    undisturbed: tuple[Path, str], mail: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = undisturbed
    monkeypatch.setattr(supervisor, "_STILL_THERE", 0.3)
    before = {each: each.stat().st_mtime_ns for each in out.rglob("*")}
    with directory_lock(out, None):
        ran = run(*command(mail, out, "--engine", "transformers", "--replace")[3:])
    assert (ran.status, f"another process is at work in {out}; wait until it ends" in ran.err) == (75, True)
    assert {each: each.stat().st_mtime_ns for each in out.rglob("*")} == before


def test_a_run_in_which_nothing_goes_on_says_where_it_stands_and_ends_with_75(mail: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    process = begun(command(mail, out, "--engine", "transformers", output__stall_seconds=0.2), log)
    assert process.wait(timeout=200) == 75, log.read_text()[-3000:]
    assert "no progress in 0.2 seconds" in log.read_text()
    stalled = (out / "stalled.txt").read_text()
    assert "After step 0; episodes: Progress(done=0" in stalled
    assert "Thread 0x" in stalled
