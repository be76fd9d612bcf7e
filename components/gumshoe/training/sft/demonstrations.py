"""Demonstrations: correct episodes of any policy, as tokens of the base model."""

import asyncio
import hashlib
import io
import json
import shlex
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from gumshoe.artifacts.storage import explain_os_errors, write_atomically
from gumshoe.environments.base import Environment
from gumshoe.environments.registry import EnvFactory, EnvironmentSettings
from gumshoe.environments.tools import Call
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.rewards.judge import Judge
from gumshoe.rewards.judge_registry import open_judge
from gumshoe.rewards.scoring import JudgedTrajectory, judge_trajectory, map_concurrently
from gumshoe.rollouts.call_forms import find_form
from gumshoe.rollouts.chat_format.chat_format import ChatFormat, Encoded
from gumshoe.rollouts.trajectory import Span, Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.signals import handle_signals
from gumshoe.terminal import err, printable, progress
from gumshoe.training.run_directory import how_to_continue


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An episode as tokens of the base model.

    Invariant: mask and ids have the same length.
    """

    scenario: str
    """The scenario's id."""
    ids: list[int]
    """[tokens]"""
    mask: list[int]
    """[tokens]: 1 for the tokens of the policy, which are trained on; 0 for all others."""

    @property
    def labels(self) -> list[int]:
        """[tokens]: ids of the tokens that are trained on, and -100, which `transformers` ignores, for all others."""
        return [each if is_learned else -100 for each, is_learned in zip(self.ids, self.mask, strict=True)]


def to_demonstrations(episode: Trajectory, environment: Environment, chat: ChatFormat) -> list[Demonstration]:
    """Convert an episode to tokens of the base model, one demonstration per segment.

    Only the turns of the policy are trained on, without mistakes and those in `untrained`. An episode of a chat model,
    which has no tokens, is written as the base model would write it.

    Raises:
        UsageError: the episode starts with another prompt than the environment's, or was recorded with another
            tokenizer.
    """
    prompt = chat.encode_prompt(environment.system_prompt(), environment.user_prompt(), environment.toolbox.schemas())
    first = episode.spans[0]
    if not first.ids:
        ids, mask = list(prompt.ids), [0] * len(prompt.ids)
        for tokens, is_trained in _write_conversation(episode, chat):
            ids += tokens.ids
            mask += [int(is_trained)] * len(tokens.ids)
        return [Demonstration(episode.scenario, ids, mask)]
    if first.ids != prompt.ids:
        raise UsageError(
            "training.other-prompt",
            f"the episode of {episode.scenario} by {episode.policy} has another prompt than training uses; use "
            "the same tokenizer, environment, chat settings and rollouts.max_turns for both",
        )
    return [Demonstration(episode.scenario, each.ids, each.mask) for each in _hide_untrained(episode).sequences]


def warn_if_other_environment(episodes: Iterable[Trajectory], env: EnvFactory) -> None:
    """Warn if episodes without token ids were recorded in another environment than the one of the training.

    Their turns are trained on after its prompt, with their own results. Episodes with token ids have their own prompts,
    which are compared with it.
    """
    here = env.provenance["environment"]
    others = list[dict[str, Any]]()
    for each in episodes:
        recorded = each.settings.get("environment")
        if isinstance(recorded, dict) and not each.spans[0].ids:
            others += [recorded] * any(here.get(name) != value for name, value in recorded.items())
    if not others:
        return
    name, arguments = str(others[0].get("name", env.name)), {**others[0]}
    differing = {name: value for name, value in arguments.items() if here.get(name) != value}
    shown = ", ".join(f"{name} {value} (training: {here.get(name)})" for name, value in differing.items())
    if name == env.name:
        arguments = {**(env.named.arguments if env.named else {}), **differing}
    arguments.pop("name", None)
    word = EnvironmentSettings(name=name, arguments=arguments).word
    err.print(
        f"[bold yellow]warning:[/] {len(others):,} episodes without token ids were recorded in another environment "
        f"than that of the training: {printable(shown)}; record them in the same one, or train in theirs with "
        f"{printable(shlex.join(('--environment', word)))}",
        soft_wrap=True,
    )


def _find_untrained(episode: Trajectory) -> set[int]:
    """Return the numbers of the turns that are not trained on, from 1."""
    return {*(each.turn for each in episode.mistakes), *episode.untrained}


def _hide_untrained(episode: Trajectory) -> Trajectory:
    """Return an episode whose turns that are not trained on are as if injected."""
    wrong, turn, spans = _find_untrained(episode), 1, list[Span]()
    for span in episode.spans:
        is_sampled = span.origin == "sampled"
        spans.append(replace(span, origin="injected", logprobs=()) if is_sampled and turn in wrong else span)
        turn += is_sampled and not span.is_continued
    return replace(episode, spans=spans)


def _write_conversation(episode: Trajectory, chat: ChatFormat) -> Iterator[tuple[Encoded, bool]]:
    """Yield the turns and results of a chat model's episode in the base model's format; True if it is trained on.

    If the base model has one call per turn, several calls become several turns.
    """
    wrong, earlier = _find_untrained(episode), 0
    for number, (turn, results) in enumerate(_pair_turns(episode.spans[1:]), 1):
        parts: list[tuple[Sequence[Call], Sequence[str]]] = [(turn.calls, results)]
        if len(turn.calls) > 1 and not chat.allows_parallel:
            parts = _split_turn(turn.calls, results, episode.deeds[number - 1] if episode.deeds else 0)
        text = find_form("hermes").outside(turn.text) if turn.calls else turn.text
        for calls, given in parts:
            yield chat.encode_turn(chat.write_turn(calls, chat.escape_control_tokens(text))), number not in wrong
            answered = calls or (Call("", {}),)
            if given:
                yield chat.encode_results(answered, given, chat.stop_ids[0], earlier), False
            earlier, text = earlier + len(answered), ""


def _split_turn(
    calls: Sequence[Call], results: Sequence[str], executed: int
) -> list[tuple[Sequence[Call], Sequence[str]]]:
    """Return the calls of a turn one by one with their results, or only the last one that ran if there are no results.

    `executed` is the number of calls that ran, 0 if it is unknown.
    """
    if not results:  # the final answer
        return [((calls[:executed] or calls)[-1:], results)]
    return [([call], [result]) for call, result in zip(calls, results, strict=True)]


def _pair_turns(spans: Sequence[Span]) -> Iterator[tuple[Span, list[str]]]:
    """Yield each turn of a chat model with the results after it."""
    for place, turn in enumerate(spans):
        if turn.origin == "sampled":
            following = takewhile(lambda span: span.origin == "injected", spans[place + 1 :])
            yield turn, [span.text for span in following]


def write_demonstrations(path: Path, demonstrations: Iterable[Demonstration]) -> None:
    """Write demonstrations as JSON lines, all of them or none."""
    lines = "".join(f"{json.dumps(asdict(each))}\n" for each in demonstrations)
    with explain_os_errors(path):
        write_atomically(path, io.BytesIO(lines.encode()))


def read_demonstrations(path: Path) -> list[Demonstration]:
    """Read the demonstrations that `write_demonstrations` wrote."""
    with path.open("rb") as file:
        return [Demonstration(**json.loads(line)) for line in file]


def filter_correct(
    episodes: Sequence[Trajectory], by_id: Mapping[str, Scenario], judge: Any, verdicts_path: Path
) -> list[Trajectory]:
    """Return the episodes whose answers a judge accepts, in the given order.

    Each verdict is written to the file `verdicts_path` at once. A later call with the same judge asks it only for the
    verdicts that are missing there.

    Raises:
        UnavailableError: the judge gave no verdict on an episode, or the process was asked to stop.
        UsageError: the judge does not exist.
    """
    verdicts = _read_verdicts(verdicts_path)
    digests = [_digest(each, by_id[each.scenario], judge) for each in episodes]
    missing = {digest: each for digest, each in zip(digests, episodes, strict=True) if digest not in verdicts}
    if missing:
        with explain_os_errors(verdicts_path), verdicts_path.open("ab") as file:
            try:
                asyncio.run(_judge(missing, by_id, open_judge(judge), file))
            except asyncio.CancelledError:
                raise UnavailableError(
                    "training.stopped-while-judging",
                    f"stopped while episodes were judged; {how_to_continue()}, which keeps the verdicts so far",
                ) from None
        verdicts = _read_verdicts(verdicts_path)
    return [each for digest, each in zip(digests, episodes, strict=True) if verdicts[digest]]


def _digest(episode: Trajectory, scenario: Scenario, judge: Any) -> str:
    """Return the SHA-256 of everything that a verdict depends on."""
    parts = json.dumps(judge, sort_keys=True), scenario.model_dump_json(), episode.to_json()
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _read_verdicts(verdicts_path: Path) -> dict[str, bool]:
    """Read the verdicts by their digests, and remove an incomplete last line from the file."""
    if not verdicts_path.exists():
        return {}
    found = verdicts_path.read_bytes()
    whole = found[: found.rfind(b"\n") + 1]
    if whole != found:
        write_atomically(verdicts_path, io.BytesIO(whole))
    return {each["episode"]: each["correct"] for each in map(json.loads, whole.splitlines())}


async def _judge(
    episodes: Mapping[str, Trajectory], by_id: Mapping[str, Scenario], judge: Judge, file: BinaryIO
) -> None:
    """Judge episodes, and append each verdict to a file."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def end(*_: object) -> None:
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    async def judge_and_write(digest: str) -> JudgedTrajectory:
        each = episodes[digest]
        found = await judge_trajectory(each, by_id[each.scenario], judge)
        if found.correct is not None:
            line = {"episode": digest, "correct": found.correct, "why": found.why}
            file.write(f"{json.dumps(line)}\n".encode())
            file.flush()
        return found

    try:
        with handle_signals(end, signal.SIGTERM), progress("Judging", total=len(episodes)) as advance:
            verdicts = await map_concurrently(judge_and_write, list(episodes), advance)
    finally:
        await judge.aclose()
    missing = next((each for each in verdicts if each.correct is None), None)
    if missing is not None:
        raise UnavailableError(
            "training.no-verdict",
            f"the judge gave no verdict on an answer to {missing.scenario}: {missing.why}; "
            f"{how_to_continue()}, which keeps the verdicts so far",
        )
