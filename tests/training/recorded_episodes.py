"""Record episodes for warm starts: a mailbox, questions about it, and scripted or expert policies."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gumshoe.environments.email import EmailEnvironment
from gumshoe.inference.policy import Sampling, ScriptedPolicy
from gumshoe.inference.policy_names import TINY, load_tokenizer
from gumshoe.mail.index import MailIndex
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeStart, run_episode
from gumshoe.rollouts.sessions import token_chat_sessions
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Span, Trajectory
from gumshoe.scenarios.scenario import Scenario, ScenarioSet
from gumshoe.scenarios.sources import load_scenarios
from gumshoe.synthesis.rng import Rng
from gumshoe.tiny.episode_generator import MAX_TURNS, PracticeCompany
from gumshoe.training.settings import TrainSettings
from gumshoe.training.settings_sources import resolve
from gumshoe.training.sft.scripted_expert import MAIL, ScriptedExpert
from gumshoe.training.sft.warm_start import WarmStartReport, start_warm
from tests.mail.mailbox import make_index
from tests.rollouts.conversations import call, synthetic

TURNS = 5
SETTINGS = {"model.name": "tiny", "lora.rank": 4, "lora.alpha": 8, "rollouts.max_turns": TURNS, "data.seed": 3}


def make_mail(directory: Path) -> Path:
    """Write an index and scenarios of two splits: four of `train`, two of `validation`."""
    make_index(directory, synthetic().messages)
    asked = [
        each.model_copy(update={"split": "train" if number < 4 else "validation"})
        for number, each in enumerate(synthetic().scenarios.scenarios[:6])
    ]
    lines = [each.model_dump_json() for each in asked]
    (directory / "scenarios.jsonl").write_text("\n".join(lines) + "\n")
    return directory


def scenarios(mail: Path) -> ScenarioSet:
    return load_scenarios(str(mail / "scenarios.jsonl"))


def environment(mail: Path, scenario: Scenario, turns: int = TURNS) -> EmailEnvironment:
    return EmailEnvironment(MailIndex(mail / "index"), scenario, turns, **EmailEnvironment.for_tiny)


def record_episodes(
    mail: Path, chat: ChatFormat, answers: Callable[[Scenario], str], turns: int = TURNS
) -> list[Trajectory]:
    """Record an episode of each scenario, with a search and an answer."""

    async def episode(scenario: Scenario) -> Trajectory:
        def script(prompt: str, seed: int) -> str:  # noqa: ARG001
            if prompt.count("<|im_start|>assistant") == 1:
                return call("search_inbox", keywords=["invoice"])
            return call("return_final_answer", answer=answers(scenario), message_ids=list(scenario.message_ids))

        policy = ScriptedPolicy(load_tokenizer(str(TINY)), script)
        open_session = token_chat_sessions(policy, chat, Sampling(0, max_tokens=300), 8192)
        found = environment(mail, scenario, turns)
        async with ToolThreads() as threads:
            with open_session(found, scenario.id) as session:
                return await run_episode(session, EpisodeStart(found, "", EpisodeLimits(turns), threads))

    return [asyncio.run(episode(each)) for each in scenarios(mail)]


def record_expert_episodes(company: PracticeCompany, count: int, turns: int = MAX_TURNS) -> list[Trajectory]:
    """Record episodes of an expert without errors, about `count` questions of a company's split `train`."""
    tokenizer = load_tokenizer(str(TINY))
    chat = ChatFormat(tokenizer)

    async def episode(scenario: Scenario) -> Trajectory:
        about, sources = company.mail.backgrounds[scenario.id], frozenset(scenario.message_ids)
        rng = Rng(1, scenario.id)
        turns_of_expert = ScriptedExpert(
            scenario, about, sources, MAIL, rng, makes_errors=False, other_answers=company.answers
        ).play()

        def script(prompt: str, seed: int) -> str:  # noqa: ARG001
            is_first = prompt.count("<|im_start|>assistant") == 1
            result = prompt.rpartition("<tool_response>\n")[2].partition("\n</tool_response>")[0]
            asked = (next(turns_of_expert) if is_first else turns_of_expert.send(result)).call
            return call(asked.name, **asked.arguments)

        open_session = token_chat_sessions(ScriptedPolicy(tokenizer, script), chat, Sampling(0, max_tokens=300), 8192)
        found = EmailEnvironment(company.index, scenario, turns, **EmailEnvironment.for_tiny)
        async with ToolThreads() as threads:
            with open_session(found, scenario.id) as session:
                return await run_episode(session, EpisodeStart(found, "", EpisodeLimits(turns), threads))

    return [asyncio.run(episode(each)) for each in company.mail.scenarios.only("train").scenarios[:count]]


def write_episodes(place: Path, episodes: list[Trajectory]) -> Path:
    place.write_text("".join(f"{each.to_json()}\n" for each in episodes))
    return place


def as_chat(episode: Trajectory) -> Trajectory:
    """Return the episode as if a chat model had played it: with texts instead of tokens, and plain tool results."""
    spans = [
        Span("prompt", "a prompt in another format")
        if each.origin == "prompt"
        else Span("sampled", each.text.removesuffix("<|im_end|>"), calls=each.calls)
        if each.origin == "sampled"
        else Span("injected", each.text.partition("<tool_response>\n")[2].partition("\n</tool_response>")[0])
        for each in episode.spans
    ]
    return replace(episode, policy="gpt", spans=spans)


def settings_of(**more: Any) -> TrainSettings:
    """Return `SETTINGS` with changes; names have `__` for a dot."""
    return resolve(None, {**SETTINGS, **{name.replace("__", "."): value for name, value in more.items()}}, {}).settings


def run_warm_start(mail: Path, file: Path, out: Path, *, resume: bool = False, **more: Any) -> WarmStartReport:
    """Run a warm start on a trajectory file."""
    settings, asked = settings_of(**more), str(mail / "scenarios.jsonl")
    return start_warm(settings, mail / "index", asked, file, out, resume=resume)


def correct_answer(scenario: Scenario) -> str:
    return scenario.answer
