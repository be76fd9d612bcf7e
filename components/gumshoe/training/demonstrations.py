"""A warm start: an adapter learns from episodes that any policy got right, before it learns from rewards."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import get_peft_model

from gumshoe.agent.chat_format import ChatFormat
from gumshoe.agent.email import EmailEnvironment
from gumshoe.agent.policies import load_tokenizer
from gumshoe.agent.run import read_trajectories
from gumshoe.agent.trajectory import Trajectory
from gumshoe.artifacts.storage import explained
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.mail.index import MailIndex
from gumshoe.rewards.judges import open_judge
from gumshoe.rewards.scoring import at_once, judge_one
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.terminal import progress
from gumshoe.training.models import begin_at, load_base, lora_of
from gumshoe.training.settings import TrainSettings
from gumshoe.training.spec import base_model, check_start, lineage_before, train_split
from gumshoe.training.warm_start import Example, WarmStart, count_batches, warm_start


@dataclass(frozen=True, slots=True)
class WarmStartReport:
    """What an adapter learned from."""

    episodes: int
    """Of the scenarios that are learned from."""
    right: int
    """Those whose answers the judge accepted."""
    too_long: int
    """Of those, the ones that are longer than the model's context, and were left out."""
    tokens: int
    """Said by the policy: what is learned."""
    steps: int
    loss: float
    """Of the last tenth of the steps, in nats a token."""
    seconds: float


def warm_started(settings: TrainSettings, index: Path, scenarios: str, file: Path, directory: Path) -> WarmStartReport:
    """Train an adapter on those episodes of a file that are about the split `train` and right, and save it.

    Episodes are as `gumshoe rollout` writes them, of any policy; those of a chat model are said again in the words of
    the base model's template. Only what the policy said is learned.

    Raises:
        UsageError: no episode can be learned from; or it cannot be carried out as it was put.
        UnavailableError: the judge gave no verdict.
    """
    started = time.monotonic()
    check_start(settings.lora)
    learned, _ = train_split(settings, scenarios)
    tokenizer = load_tokenizer(base_model(settings))
    by_id = {scenario.id: scenario for scenario in learned}
    episodes = [each for each in read_trajectories(file) if each.scenario in by_id]
    if not episodes:
        raise UsageError(f"{file} has no episode of the {len(learned):,} scenarios of the split train")
    right = asyncio.run(_right(episodes, by_id, settings.evaluation.judge))
    kept = _examples(right, by_id, settings, MailIndex(index), ChatFormat(tokenizer))
    examples = [example for _, example in kept]
    if not examples:
        why = f"none of its {len(episodes):,} episodes is right" if not right else "all that are right are too long"
        raise UsageError(f"{file} has nothing to learn from: {why}")
    model, how = _adapted(settings), _planned(settings, examples)
    with progress("Learning", total=how.steps) as advance:
        loss = warm_start(model, examples, how, lambda found: advance(1, note=f"loss {found:.3f}"))
    with explained(directory):
        model.save_pretrained(str(directory))
        tokenizer.save_pretrained(str(directory))
    used = {scenario.id for scenario, _ in kept}
    seen = ScenarioSet(tuple(each for each in learned if each.id in used))
    Lineage(learned_from=seen.record(), before=lineage_before(settings.lora)).write(directory)
    return WarmStartReport(
        len(episodes),
        len(right),
        len(right) - len(examples),
        sum(int(sum(each.weights)) for each in examples),
        how.steps,
        loss,
        round(time.monotonic() - started, 1),
    )


def _examples(
    episodes: Sequence[Trajectory],
    by_id: Mapping[str, Scenario],
    settings: TrainSettings,
    mail: MailIndex,
    chat: ChatFormat,
) -> list[tuple[Scenario, Example]]:
    """Episodes as tokens, each with what it is of; but for those that are longer than the model's context."""
    examples = []
    for each in episodes:
        scenario = by_id[each.scenario]
        example = example_of(each, EmailEnvironment(mail, scenario, settings.rollouts.max_turns), chat)
        if len(example.ids) <= settings.model.max_context:
            examples.append((scenario, example))
    return examples


def _adapted(settings: TrainSettings) -> Any:
    """The base model with the adapter that is to learn."""
    model = get_peft_model(load_base(settings), lora_of(settings.lora))
    if settings.lora.start is not None:
        begin_at(model, settings.lora.start)
    if settings.model.gradient_checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    return model


def _planned(settings: TrainSettings, examples: Sequence[Example]) -> WarmStart:
    """How much is learned from them: as many batches as the epochs that are wanted have."""
    wanted = settings.warm_start
    tokens = max(wanted.batch_tokens, *(len(each.ids) for each in examples))
    steps = math.ceil(wanted.epochs * count_batches(examples, tokens))
    return WarmStart(steps, tokens, wanted.learning_rate, seed=settings.data.seed)


def example_of(episode: Trajectory, environment: EmailEnvironment, chat: ChatFormat) -> Example:
    """An episode as tokens of the base model; what the policy said counts, and nothing else.

    Raises:
        UsageError: it begins with another prompt than this environment's, or its tokens are another tokenizer's.
    """
    prompt = chat.prompt(environment.system_prompt(), environment.user_prompt(), environment.toolbox.schemas())
    first, *later = episode.segments
    if first.ids:
        if first.ids != prompt.ids:
            raise UsageError(
                f"the episode of {episode.scenario} by {episode.policy} begins otherwise than those that are trained "
                "on: it is of another tokenizer, or had another number of turns (rollouts.max_turns)"
            )
        return Example(episode.ids, [float(sampled) for sampled in episode.mask])
    ids, weights = list(prompt.ids), [0.0] * len(prompt.ids)
    for segment in later:
        is_sampled = segment.origin == "sampled"
        said = chat.turn(segment.text) if is_sampled else chat.glue(segment.text)
        ids += said.ids
        weights += [float(is_sampled)] * len(said.ids)
    return Example(ids, weights)


async def _right(episodes: Sequence[Trajectory], by_id: Mapping[str, Scenario], named: str) -> list[Trajectory]:
    """Those whose answers a judge accepts."""
    judge = open_judge(named)
    try:
        with progress("Judging", total=len(episodes)) as advance:
            verdicts = await at_once(lambda each: judge_one(each, by_id[each.scenario], judge), episodes, advance)
    finally:
        await judge.aclose()
    missing = next((each for each in verdicts if each.correct is None), None)
    if missing is not None:
        raise UnavailableError(f"no verdict on an answer of {missing.scenario}: {missing.why}")
    return [each for each, verdict in zip(episodes, verdicts, strict=True) if verdict.correct]
