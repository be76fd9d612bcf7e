"""Measure what policies memorized of canaries: ranks by log-probability, and extraction in sampled episodes."""

import asyncio
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.corpus import SCENARIOS_FILE
from gumshoe.environments.registry import FINAL_ANSWER, EnvFactory
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.evaluation.canary_probes import (
    CanaryProbe,
    OtherCaller,
    build_probe,
    canary_of,
    check_hidden,
    choose_callers,
    extraction_scenarios,
    split_common_prefix,
)
from gumshoe.evaluation.exposure import exposure_bits, rank_secret
from gumshoe.evaluation.memorization import CanaryResult, LeakPlace, Memorization, summarize_canaries
from gumshoe.evaluation.results import MEMORIZED
from gumshoe.inference.policy_names import KEYWORDS, PolicyName
from gumshoe.rollouts.sessions import TokenPolicy, env_for_policy, load_chat_format, open_token_policy
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.writer import RolloutOptions, read_trajectories, run_to_file
from gumshoe.scenarios.canary_record import Canary, CanaryRecord
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.synthesis.canaries import draw_alternatives
from gumshoe.terminal import Advance

ALTERNATIVES = 127
_SAMPLES = 2  # episodes per wording
_TEMPERATURE = 1.0
_QUESTIONS = "questions"  # directory, because a policy may have that name


@dataclass(frozen=True, slots=True)
class CanarySettings:
    """Canaries to measure, and the effort for each."""

    record: CanaryRecord
    alternatives: int = ALTERNATIVES
    """Number of alternatives that each secret is ranked among."""
    samples: int = _SAMPLES
    """Number of sampled episodes per wording of the question."""


@dataclass(frozen=True, slots=True)
class ProbedPolicy:
    """A policy to measure."""

    name: str
    word: str
    learned: int | None
    """Number of planted canaries that it was trained on; None if unknown."""


def check_probed(word: str, name: str) -> None:
    """Check that a policy can be measured.

    Raises:
        UsageError: if it has no log-probabilities.
    """
    policy = PolicyName.parse(word)
    if policy.kind in ("chat", KEYWORDS):
        raise UsageError(
            "evaluation.memorised-needs-token-policy",
            f"--memorised needs log-probabilities, which {name} ({policy.kind}) does not have; evaluate a tiny, "
            "local:, vllm: or transformers: policy",
        )


@dataclass(frozen=True, slots=True)
class CanaryQuestions:
    """Questions that callers of other inboxes ask about canaries."""

    scenarios: ScenarioSet
    probes: Mapping[str, Mapping[str, CanaryProbe]]
    """By policy name and canary id, with the conversations that fit into the maximum number of tokens."""


async def prepare_questions(
    settings: CanarySettings,
    rollout: RolloutOptions,
    policies: Sequence[ProbedPolicy],
    env_factory: EnvFactory,
    scenarios: ScenarioSet,
    watch: Callable[[str], AbstractContextManager[Advance]],
) -> CanaryQuestions:
    """Return the questions of callers of the inboxes of `scenarios`. Needs no model or server.

    Raises:
        UsageError: if there is no other inbox, a canary is visible in one, or a question has no room.
    """
    if not env_factory.has_inboxes:
        raise UsageError(
            "evaluation.memorised-needs-mail",
            f"--memorised is about mail, but {env_factory.name} has no inboxes; evaluate with an index of mail",
        )
    callers = choose_callers(settings.record, scenarios)
    probes = {}
    for each in policies:
        with watch(f"Preparing canaries: {each.name}") as advance:
            own = rollout.for_policy(each.word)
            probes[each.name] = await asyncio.to_thread(_build_probes, settings, own, env_factory, callers, advance)
    return CanaryQuestions(extraction_scenarios(settings.record, callers), probes)


def _build_probes(
    settings: CanarySettings,
    rollout: RolloutOptions,
    env_factory: EnvFactory,
    callers: Mapping[str, OtherCaller],
    advance: Advance,
) -> dict[str, CanaryProbe]:
    """Return the probes of a policy by canary id.

    Raises:
        UsageError: if a canary is visible to its caller, or no conversation fits into the maximum number of tokens.
    """
    name, limits, record = PolicyName.parse(rollout.policy), rollout.limits, settings.record
    own_env = env_for_policy(env_factory, name, rollout.tokenizer)
    chat = load_chat_format(name, rollout.tokenizer, rollout.chat)
    advance(total=len(record.canaries))
    found = {}
    for canary in record.canaries:
        secrets = [canary.secret, *draw_alternatives(canary, settings.alternatives, record.seed)]
        probe = build_probe(canary, secrets, callers[canary.id], own_env, chat, limits.max_turns)
        longest = max(map(len, probe.answers))
        fitting = [each for each in probe.contexts if len(each) + longest < limits.max_context]
        if not fitting:
            raise UsageError(
                "evaluation.canary-context-too-small",
                f"--max-context {limits.max_context} has no room for the question about {canary.id}; raise it to at "
                f"least {min(map(len, probe.contexts)) + longest + 1}",
            )
        found[canary.id] = replace(probe, contexts=fitting)
        advance(1)
    return found


async def measure_memorization(
    settings: CanarySettings,
    rollout: RolloutOptions,
    policies: Sequence[ProbedPolicy],
    directory: Path,
    env_factory: EnvFactory,
    questions: CanaryQuestions,
    watch: Callable[[str], AbstractContextManager[Advance]],
) -> dict[str, Memorization]:
    """Return what each policy memorized, by name. The episodes are written into the directory, and reused.

    Raises:
        UsageError: if a canary is visible in another inbox.
        UnavailableError: if some questions have no answer.
    """
    record, place = settings.record, directory / MEMORIZED
    with explain_os_errors(place):
        asked = place / _QUESTIONS / SCENARIOS_FILE
        asked.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(asked, io.BytesIO(questions.scenarios.to_jsonl()))
    found: dict[str, Memorization] = {}
    for each in policies:
        with watch(f"Scoring canaries: {each.name}") as advance:
            own = rollout.for_policy(each.word)
            ranks = await _rank_canaries(questions.probes[each.name], own, advance)
        with watch(f"Asking for canaries: {each.name}") as advance:
            files = asked, place / f"{each.name}.jsonl"
            leaks = await _extract(settings, own, files, each.name, env_factory, advance)
        found[each.name] = summarize_canaries(
            [_to_result(canary, ranks[canary.id], leaks[canary.id], settings) for canary in record.canaries],
            content=record.content,
            learned=each.learned,
            alternatives=settings.alternatives,
            prompts=max(len(probe.contexts) for probe in questions.probes[each.name].values()),
            episodes=settings.samples * len(questions.scenarios) // len(record.canaries),
            first=next(iter(found.values()), None),
        )
    return found


def _to_result(canary: Canary, rank: int, leaks: Sequence[LeakPlace], settings: CanarySettings) -> CanaryResult:
    return CanaryResult(
        id=canary.id,
        is_planted=canary.is_planted,
        rank=rank,
        exposure=exposure_bits(rank, settings.alternatives),
        extracted=len(leaks),
        leaks=tuple(sorted(set(leaks))),
    )


async def _rank_canaries(
    probes: Mapping[str, CanaryProbe], rollout: RolloutOptions, advance: Advance
) -> dict[str, int]:
    """Return the rank of each canary's secret, by id."""
    name = PolicyName.parse(rollout.policy)
    advance(total=len(probes))
    ranks = {}
    async with open_token_policy(
        name, rollout.tokenizer, rollout.limits.max_context, chat_settings=rollout.chat
    ) as opened:
        for canary, probe in probes.items():
            ranks[canary] = rank_secret(await _score(opened, probe))
            advance(1)
    return ranks


async def _score(opened: TokenPolicy, probe: CanaryProbe) -> NDArray[np.float64]:
    """Return the log-probabilities of the secrets as the final answer after each conversation, [prompts, secrets]."""
    prefix, rests = split_common_prefix(probe.answers)
    return np.array([await opened.policy.score([*each, *prefix], rests) for each in probe.contexts])


async def _extract(
    settings: CanarySettings,
    rollout: RolloutOptions,
    files: tuple[Path, Path],
    name: str,
    env_factory: EnvFactory,
    advance: Advance,
) -> dict[str, list[LeakPlace]]:
    """Run the missing episodes that ask for canaries. Return by canary where its secret was written, once an episode.

    `files` are the questions and the trajectories, and `name` is the policy's.

    Raises:
        UsageError: if a canary is visible to a caller of another inbox.
        UnavailableError: if some questions have no answer.
    """
    questions, path = files
    sampling = replace(rollout.sampling, temperature=_TEMPERATURE, top_p=1.0)
    own = replace(
        rollout, scenarios=str(questions), split=None, limit=None, samples=settings.samples, sampling=sampling
    )
    report = await run_to_file(own, path, advance, env_factory)
    if report.dropped:
        scenario, cause = next(iter(report.dropped_groups.items()))
        raise UnavailableError(
            "evaluation.questions-unanswered",
            f"{name} did not answer {report.dropped:,} questions about canaries, e.g. {scenario}: {cause}; run "
            "the command again for the missing answers",
        )
    by_id = {each.id: each for each in settings.record.canaries}
    found: dict[str, list[LeakPlace]] = {name: [] for name in by_id}
    for trajectory in read_trajectories(path):
        canary = by_id.get(canary_of(trajectory.scenario))
        if canary is not None and (leak := find_leak(canary, trajectory)):
            found[canary.id].append(leak)
    return found


def find_leak(canary: Canary, trajectory: Trajectory) -> LeakPlace | None:
    """Return where a policy wrote a secret in an episode of another inbox, or None.

    Raises:
        UsageError: if a tool's result contains the secret before the policy wrote it. Later ones may quote its calls.
    """
    written = ""
    for span in trajectory.spans:
        if span.origin == "sampled":
            written += span.text
        elif span.origin == "injected" and not canary.is_in(written):
            check_hidden(canary, span.text)
    if not canary.is_in(written):
        return None
    calls = [call for span in trajectory.spans for call in span.calls]
    in_calls = {call.name for call in calls if any(canary.is_in(str(each)) for each in call.arguments.values())}
    return "answer" if FINAL_ANSWER in in_calls else "call" if in_calls else "text"
