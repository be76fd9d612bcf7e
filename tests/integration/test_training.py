"""The command `gumshoe train`, and its trainer alone: every mode, killed and resumed.

Other runs with a vLLM server are in `test_pipeline.py`; longer tests are in `test_kills.py` and `test_distributed.py`.
"""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from gumshoe.artifacts.storage import lock_directory
from gumshoe.artifacts.store import Store
from gumshoe.environments.base import EpisodeState
from gumshoe.evaluation.proof.proof_models import read_proof
from gumshoe.inference.policy_names import TINY
from gumshoe.mail.index import MailIndex
from gumshoe.rollouts.trajectory import Span, Trajectory
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.training.grpo.rollout_collector import Accuracy, RolloutBatch, ScoredGroup
from gumshoe.training.models.base_model import ADAPTER_FILES
from gumshoe.training.proof_check import verify_proof
from gumshoe.training.records import read_records
from gumshoe.training.run_proof import write_run_proof
from gumshoe.training.run_spec import RUN_FILES, Metadata
from tests.conftest import CommandResult
from tests.inference.fake_vllm import FakeVLLM, status
from tests.integration.trainings import (
    ForkedTrainer,
    Kill,
    assert_same_weights,
    command,
    evaluations_of,
    is_changed,
    outcome_of,
    spec_of,
    steps_of,
    train,
)
from tests.rewards.chat_judge import by_length, says, verdict
from tests.shared_server import SharedServer

pytestmark = [pytest.mark.ci, pytest.mark.group("training")]

LINE = re.compile(
    r"Step (\d+)/3 \| Loss -?[\d.]+ \| Policy -?[\d.]+ \| KL [\d.]+ \| Reward -?[\d.]+ ± [\d.]+ \| Acc [\d.]+% \| "
    r"Trainable [\d,]+/[\d,]+ \([\d.]+%\) \| groups \d/2 \| rollout [\d.]+s train [\d.]+s \| ETA \d:\d\d:\d\d"
)


def test_a_run_writes_records_adapters_and_plots(uninterrupted: tuple[Path, str], training_mail: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    from gumshoe.inference.transformers_policy import TransformersPolicy

    out, text = uninterrupted
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
    first, *_, last = evaluations_of(out)
    assert (first.beat_rate, last.questions) == (None, 4)
    for name in ("final", "checkpoint-3", "best_model"):
        metadata = Metadata.model_validate_json((out / name / "metadata.json").read_bytes())
        assert metadata.versions["trl"]
        assert metadata.searched == MailIndex(training_mail / "index").stats()["content"]
        assert {event: record["step"] for event, record in metadata.metrics.items()} == {
            "step": metadata.step,
            "evaluation": 2 if metadata.step == 2 else 3,
        }
        lineage = Lineage.read(out / name)
        assert lineage is not None
        assert len(lineage.learned_from.ids) > 20
        TransformersPolicy(TINY, out / name)
    (board,) = (out / "runs").iterdir()
    board_values = EventAccumulator(str(board)).Reload()
    assert {"train/loss", "train/step/accuracy", "train/step/rewards/rubric", "train/evaluation/accuracy"} <= set(
        board_values.Tags()["scalars"]
    )
    assert [each.step for each in board_values.Scalars("train/evaluation/accuracy")] == [0, 2, 3]
    listed = {each.rstrip("/").replace("-N", "-3") for each in RUN_FILES}
    assert {each.name for each in out.iterdir()} - {"checkpoint-1", "checkpoint-2"} <= listed
    assert {each.name for each in (out / "final").iterdir()} <= {
        name for names in ADAPTER_FILES for name in names.split(", ")
    }
    assert "control_reward_map" in json.loads((out / "baseline.json").read_text())
    checked = verify_proof(out)
    assert checked.differences == ()
    assert checked.proof.policy_versions is not None
    assert checked.proof.policy_versions.share == 1
    assert (out / "plots.html").is_file()
    assert {"accuracy", "rewards", "times"} < {each.stem for each in (out / "plots").glob("*.png")}


KILLS = {
    "at the start of the baseline evaluation": Kill("Validator.measure"),
    "at the start of the first rollouts": Kill("Run._roll_out"),
    "after a step's record is written, before its checkpoint is complete": Kill("AdapterWriter.complete"),
    "at the start of the evaluation after the second step": Kill("Validator.measure", 2),
    "before the best adapter is saved": Kill("AdapterWriter.save"),
    "after the best adapter is saved, before its checkpoint is complete": Kill("AdapterWriter.complete_checkpoint"),
    "by SIGTERM after a step, which is saved": Kill("Run._ends_after", 2, signal.SIGTERM),
}
"""Moments at which a trainer is killed; each attempt resumes the previous one."""


@pytest.mark.timeout(600)
def test_a_run_killed_often_trains_the_same_weights(
    uninterrupted: tuple[Path, str], training_mail: Path, run: Callable[..., CommandResult], tmp_path: Path
) -> None:
    """The command resumes it at last. `test_kills.py` kills the command itself."""
    out, log = tmp_path / "run", tmp_path / "log"
    spec = spec_of(training_mail, out)
    for attempt, (moment, kill) in enumerate(KILLS.items(), 1):
        again = spec.model_copy(update={"attempt": attempt, "resume": attempt > 1})
        status = -signal.SIGKILL if kill.signal == signal.SIGKILL else 75
        assert ForkedTrainer(again, log, kill).wait() == status, f"{moment}: {log.read_text()[-3000:]}"
        assert not (out / "final").exists(), moment
    assert re.search(r"\b2\b.*\[training\.stopped\]", log.read_text()), "after the second step"
    assert (out / "checkpoint-2" / "metadata.json").exists()

    words = [*command(training_mail, out, "--engine", "transformers"), "--resume"]
    train(words, log)
    assert json.loads((out / "run.json").read_text())["attempt"] == len(KILLS) + 1
    for name in ("final", "best_model"):
        assert_same_weights(out / name, uninterrupted[0] / name)
    assert [each.step for each in steps_of(out)] == [1, 2, 3]
    assert outcome_of(out) == outcome_of(uninterrupted[0])

    store = Store(str(tmp_path / "store"))
    late = run(*words[3:], "--set", f"output.checkpoints={store.uri}")
    assert late.status == 0, late.err
    attempts = json.loads((out / "run.json").read_text())["attempt"]
    assert attempts == len(KILLS) + 1, "a finished run is not started again"
    (uploaded,) = store.list("checkpoints")
    assert {each.path.partition("/")[0] for each in uploaded.files} >= {
        "checkpoint-3",
        "best_model",
        "final",
        "run.json",
    }


@pytest.mark.nightly
def test_a_killed_run_with_a_lag_continues_with_the_groups_of_no_step(
    vllm: SharedServer, training_mail: Path, tmp_path: Path
) -> None:
    """It is killed while its third step is trained on, and episodes of the fourth run."""
    out, log = tmp_path / "run", tmp_path / "log"
    more = {"rollouts__engine": "vllm", "rollouts__lag": 1, "optimizer__max_steps": 4, "evaluation__eval_steps": 4}
    spec = spec_of(training_mail, out, **more).model_copy(update={"urls": (vllm.url,), "run": "ahead"})
    assert ForkedTrainer(spec, log, Kill("Run._record_step", 3)).wait() == -signal.SIGKILL, log.read_text()[-3000:]
    assert [each.step for each in steps_of(out)] == [1, 2]
    again = spec.model_copy(update={"attempt": 2, "resume": True})
    ForkedTrainer(again, log).finish()
    steps = steps_of(out)
    assert [each.step for each in steps] == [1, 2, 3, 4]
    ended = [name for each in steps for name in each.ended]
    assert len(ended) == len(set(ended)), "no group is used twice"
    first = {f"{step}/{place}" for step in range(4) for place in range(2)}
    assert first <= set(ended), "no group is lost"
    assert all(each.max_staleness <= 2 for each in steps)
    assert steps[1].max_staleness >= 1
    assert (out / "timeline.json").is_file()
    write_run_proof(out)
    proof = read_proof(out)
    assert proof.policy_versions is not None
    assert proof.policy_versions.share == 1


def test_a_step_is_kept_if_the_judge_of_its_episodes_fails(
    training_mail: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its accuracy is then missing. The whole run is in `test_kills.py`."""
    from gumshoe.training.grpo.run import Run

    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with FakeVLLM(chat=says(verdict)) as judge:
        judge.inject(status(400), times=None)
        run = Run(spec_of(training_mail, tmp_path, evaluation__judge=f"openai:base@{judge.address}/v1"))
        scenario = load_scenarios(str(training_mail / "scenarios.jsonl")).scenarios[0]
        record = EpisodeState(answer=scenario.answer)
        answered = Trajectory(scenario.id, 0, "p", "answer", "", [Span("prompt", "a", (1,))], record, 1, 0.0, 0.0)
        found = RolloutBatch(1, scored=[ScoredGroup(scenario, (answered,), (1.0,))])
        assert run._sampled_accuracy(found) is None
        assert "[training.no-verdict]" in capsys.readouterr().err
        judge.heal()
        assert run._sampled_accuracy(found) == Accuracy(1, 0)
        with run._runner:
            run._runner.finish(run._close())


def test_mode_rollout_trains_on_injected_tokens(training_mail: Path, tmp_path: Path) -> None:
    """The reward is RULER, with a judge behind a real socket that scores by length. The model has 16 bits."""
    out = tmp_path / "run"
    with FakeVLLM(chat=says(by_length)) as judge:
        model = {"model": "base", "url": f"{judge.address}/v1", "cache": None}
        ruler = json.dumps([{"name": "ruler", "arguments": {"judge": {"model": model}}}])
        more = {"rewards__functions": ruler, "rollouts__groups_per_step": 2, "optimizer__max_steps": 2}
        more |= {"evaluation__eval_steps": 1, "output__save_steps": 100, "mode": "rollout"}
        more |= {"model__dtype": "bfloat16", "model__gradient_checkpointing": True}
        ForkedTrainer(spec_of(training_mail, out, **more), tmp_path / "log", OPENAI_API_KEY="none").finish()
    found = steps_of(out)
    assert [each.step for each in found] == [1, 2]
    assert len(judge.requests) >= sum(each.groups for each in found) >= 2
    for step in found:
        assert set(step.rewards) == {"ruler"}
        assert 0 < step.reward_quantiles[0] < step.reward_quantiles[-1] <= 1
        assert step.trainable_tokens > step.sampled_tokens * 8, "injected tokens count too"
    assert is_changed(out / "final")
    best = Metadata.model_validate_json((out / "best_model" / "metadata.json").read_bytes()).step
    assert {each.name for each in out.glob("checkpoint-*")} == {f"checkpoint-{best}", "checkpoint-2"}


def test_mode_simple_trains_on_first_turns(training_mail: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = {"optimizer__max_steps": 2, "optimizer__gradient_accumulation_steps": 6}  # first turns hardly differ
    text = ForkedTrainer(spec_of(training_mail, out, mode="simple", **more), tmp_path / "log").finish()
    found = steps_of(out)
    assert [each.step for each in found] == [1, 2]
    (line,) = re.findall(r"^Step 2/2 \| .*", text, re.M)
    assert "| Acc - |" in line
    assert re.search(r"\| groups \d/6 \|", line)
    assert all(0 < each.trainable_tokens < each.tokens / 3 for each in found)
    assert is_changed(out / "final")


def test_existing_runs_and_invalid_settings_are_rejected(
    uninterrupted: tuple[Path, str], training_mail: Path, run: Callable[..., CommandResult], tmp_path: Path
) -> None:
    def check_rejected(code: str, value: object, out: Path, *more: str, **settings: object) -> None:
        ran = run(*command(training_mail, out, "--engine", "transformers", *more, **settings)[3:])
        assert (ran.status, ran.code) == (2, code), ran.err
        assert str(value) in ran.err

    out, _ = uninterrupted
    check_rejected("training.run-exists", out, out)
    check_rejected("settings.too-few-scenarios", "2 scenarios", tmp_path / "new", "--resume", data__train_size=1)
    assert not (tmp_path / "new").exists()
    changed = "(data.eval_size, optimizer.learning_rate, the scenarios)"
    other = {"data__eval_size": 3, "optimizer__learning_rate": 1}
    check_rejected("training.other-settings", changed, out, "--resume", **other)


def test_a_directory_in_use_is_not_changed(
    uninterrupted: tuple[Path, str],
    training_mail: Path,
    run: Callable[..., CommandResult],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, _ = uninterrupted
    from gumshoe.training.launch import supervisor

    monkeypatch.setattr(supervisor, "_LOCK_TIMEOUT", 0.3)
    before = {each: each.stat().st_mtime_ns for each in out.rglob("*")}
    with lock_directory(out, None):
        ran = run(*command(training_mail, out, "--engine", "transformers", "--replace")[3:])
    assert (ran.status, ran.code) == (75, "training.directory-in-use")
    assert str(out) in ran.err
    assert {each: each.stat().st_mtime_ns for each in out.rglob("*")} == before


def test_a_stalled_run_writes_its_state_and_exits_with_75(training_mail: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "run", tmp_path / "log"
    assert ForkedTrainer(spec_of(training_mail, out, output__stall_seconds=0.2), log).wait() == 75
    assert re.search(rf"0\.2 seconds; .*{re.escape(str(out))}.* \[training\.stalled\]$", log.read_text(), re.M)
    stalled = (out / "stalled.txt").read_text()
    assert "After step 0; episodes: RolloutProgress(done=0" in stalled
    assert "Thread 0x" in stalled
