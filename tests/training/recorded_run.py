"""Record a small run with the functions that a trainer uses, without a model: two steps in two attempts."""

from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from gumshoe.environments.base import Ending, EpisodeState
from gumshoe.rollouts.trajectory import Segment, Span, Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.training.attempts import AttemptProgress, record_attempt, write_attempt_event
from gumshoe.training.episode_records import SampledComparison, write_episodes
from gumshoe.training.records import write_record
from gumshoe.training.run_spec import ATTEMPTS, BASELINE, BEST, EPISODES, FINAL, METRICS, SPEC, RunSpec
from gumshoe.training.settings_sources import resolve
from tests.training.test_records import evaluation
from tests.waiting import Clock

HOUR = 3600.0
GENERATIONS = 2
MISSING = "<missing@x.example>"
"""A source that is not in the index."""
SETTINGS = {
    "costs.gpu_hour": 2.5,
    "costs.cpu_hour": 0.5,
    "rollouts.num_generations": GENERATIONS,
    "optimizer.per_device_train_batch_size": 2 * GENERATIONS,
    "optimizer.gradient_accumulation_steps": 1,
    "optimizer.max_steps": 2,
}


def scenario(number: int, source: str = "<1@x.example>") -> Scenario:
    return Scenario(
        id=f"q{number}",
        question=f"Question {number}?",
        answer="A",
        message_ids=(source,),
        inbox_address="a@x.example",
        query_date=date(2024, 1, 1),
    )


def episode(
    number: int, sample: int, policy: str, *, turns: int = 2, split: bool = False, ending: Ending = "answer"
) -> Trajectory:
    spans = [Span("prompt", "p", (1, 2))]
    for turn in range(turns):
        spans += [Span("sampled", "s", (3, 4, 5), (-0.1,) * 3, segment=int(split and turn > 0))]
    segments = [Segment(0, 2, (), "history edited")] if split else []
    record = EpisodeState(answer="A")
    rewards = {"rubric": 0.25 * number + sample, "reward": 0.5 * number + sample}
    return Trajectory(
        f"q{number}", sample, policy, ending, "", spans, record, turns, 1.0, 0.5, tries=1 + sample, segments=segments,
        rewards=rewards,
    )  # fmt: skip


def comparison(number: int, *, difference: float = 0.001, rejected: bool = False) -> SampledComparison:
    return SampledComparison(
        tokens=6,
        difference=difference,
        mean_ratio=0.99,
        min_ratio=0.9 - number / 100,
        max_ratio=1.1 + number / 100,
        trained=0 if rejected else 6,
        rejected=rejected,
    )


def record_step(directory: Path, step: int, attempt: int, groups: list[list[Trajectory]], **more: Any) -> None:
    """Record a step. The last of three groups is flat: it is scored, and not trained on."""
    from gumshoe.training.grpo.rollout_collector import Accuracy, RolloutBatch, ScoredGroup
    from gumshoe.training.grpo.sampler_check import StepMetrics
    from gumshoe.training.grpo.step_summary import episode_records, step_record
    from gumshoe.training.grpo.trainer_usage import TrainerUsage

    found = RolloutBatch(2, draws=1, seconds=20.0, waited=20.0)
    for members in groups:
        name = int(members[0].scenario.removeprefix("q"))
        source = MISSING if name == 3 else "<1@x.example>"
        rewards = tuple(each.rewards["reward"] for each in members)
        found.scored.append(ScoredGroup(scenario(name, source), tuple(members), rewards))
    found.groups = found.scored[:2]
    found.dropped = more.get("dropped", {})
    found.retry_causes = Counter(more.get("retry_causes", {}))
    found.retried = found.retry_causes.total()
    comparisons = more.get("comparisons") or [comparison(each) for each in range(4)]
    trained, tokens = sum(each.trained for each in comparisons), sum(each.tokens for each in comparisons)
    metrics = StepMetrics(
        uses=1,
        trainable=trained,
        tokens=100,
        off_policy=sum(each.rejected for each in comparisons) // GENERATIONS,
        ratio=sum(each.mean_ratio * each.tokens for each in comparisons) / tokens,
        difference=sum(each.difference * each.tokens for each in comparisons) / tokens,
    )
    env = SimpleNamespace(find_source=lambda _, source: None if source == MISSING else source)
    record = step_record(
        step,
        {"loss": 0.1, "learning_rate": 1e-3},
        found,
        metrics,
        beta=0.0,
        accuracy=Accuracy(0.5, 0.125),
        seconds=50.0,
        publish_seconds=2.0,
        policy=f"rr7-{attempt}-policy-{step - 1}",
        usage=TrainerUsage({"waiting": 20.0, "forward": 10.0, "backward": 15.0, "other": 5.0}, 90, None),
    )
    write_episodes(directory / EPISODES, episode_records(step, found, comparisons, cast(Any, env)))
    write_record(directory / METRICS, record)


def make_run(directory: Path, numbers: Sequence[int] = (1, 2, 3), /, **settings: Any) -> Path:
    """Write the directory of a finished run. Its first attempt was killed after step 2, and lost that step.

    `numbers` are those of the scenarios of step 1.
    """
    directory.mkdir(parents=True)
    flags = {**SETTINGS, "output.directory": str(directory), **settings}
    spec = RunSpec(
        settings=resolve("tiny", flags, {}).settings,
        index=directory,
        scenarios="",
        content="trained validated ordered",
        searched="indexed",
        run="r7",
        attempt=2,
    )
    (directory / SPEC).write_text(spec.model_dump_json())
    (directory / BASELINE).write_text("{}")
    for name, weights in ((FINAL, b"final"), (BEST, b"best")):
        (directory / name).mkdir()
        (directory / name / "adapter_model.safetensors").write_bytes(weights)
        (directory / name / "adapter_config.json").write_text("{}")
    write_record(directory / METRICS, evaluation(0))
    first, second = "rr7-1-policy-0", "rr7-2-policy-1"
    groups = [[episode(number, sample, first) for sample in range(GENERATIONS)] for number in numbers]
    record_step(directory, 1, 1, groups, retry_causes={"inference.server-gone": 2})
    groups = [
        [episode(number, sample, second, split=number == 4) for sample in range(GENERATIONS)] for number in (4, 5)
    ]
    rejected = [comparison(0), comparison(1), *[comparison(2, difference=2.0, rejected=True)] * 2]
    dropped = {"q6": "the judge gave no verdict [rewards.judge-failed]"}
    record_step(directory, 2, 2, groups, comparisons=rejected, dropped=dropped)
    record_attempts(directory / ATTEMPTS)
    return directory


def record_attempts(path: Path) -> None:
    """Record an attempt of an hour that was killed after its second step, and one of two hours."""
    clock = Clock()
    with record_attempt(path, 1, 2, 8, clock.now):
        for step in (1, 2):
            clock.advance(HOUR / 2)
            write_attempt_event(path, AttemptProgress(attempt=1, time=clock.now(), step=step))
        clock.advance(HOUR)
    *kept, _ = path.read_text().splitlines(keepends=True)
    path.write_text("".join(kept) + '{"event": "en')  # killed while it wrote
    with record_attempt(path, 2, 4, 8, clock.now):
        clock.advance(HOUR)
        write_attempt_event(path, AttemptProgress(attempt=2, time=clock.now(), step=2))
        clock.advance(HOUR)
