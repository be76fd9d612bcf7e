"""Measure the speed of rollouts: `python -m tests.benchmarks.agent`.

The engine only: episodes in an index of synthetic mail with a policy that answers at once, so that all the time goes
into tools, tokens and the engine; concurrent, and one after another. The samples of a group share their prompt and
often their results, which are cached; the speed without repetition is shown too.

The tiny policy, with a vLLM server and in this process: concurrent, and one after another, also on a server with vLLM's
defaults. With an adapter: on a server as Gumshoe starts it on a CPU, and on one with vLLM's defaults.

Takes some minutes. Numbers are medians unless noted otherwise.
"""

import argparse
import asyncio
import re
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from peft import get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from gumshoe.environments.email import EmailEnvironment
from gumshoe.inference.policy import Completion, Policy, Sampling
from gumshoe.inference.policy_names import TINY, PolicyName
from gumshoe.inference.vllm_plugin import ENABLE_VARIABLE
from gumshoe.inference.vllm_server import ServerOptions, VLLMServer
from gumshoe.mail.build import build_mail_index
from gumshoe.mail.index import MailIndex
from gumshoe.mail.search_results import Hit, Message
from gumshoe.rollouts.chat_format.chat_format import ChatFormat, Encoded
from gumshoe.rollouts.engine import RolloutEngine
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeStart, run_episode
from gumshoe.rollouts.episode_runners import open_policy
from gumshoe.rollouts.token_session import TokenChatSession
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.synthesis.mailboxes import MAIL_FILE, SyntheticMail, synthesize_mail, write_mail
from gumshoe.training.models.lora_model import lora_config
from gumshoe.training.settings_sections import LoraSettings
from tests.benchmarks.mail import ratio, show, spread
from tests.rollouts.conversations import QWEN2_5, call, train

AT_ONCE = 64
VOCABULARY = 4000
_ALONE, _HERE = 12, 4  # one after another and in this process, only every 12th or 4th question is used
LIMITS = EpisodeLimits(max_turns=6, max_context=16_384)
_OURS, _THEIRS = "as Gumshoe starts it", "with vLLM's defaults"
_SERVERS = {
    _OURS: ServerOptions(),
    _THEIRS: ServerOptions(
        environment={ENABLE_VARIABLE: "", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}, arguments=("--block-size", "128")
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=8, help="episodes per group")
    parser.add_argument(
        "--groups", type=int, default=500, help="number of groups, each with another question (at most 777)"
    )
    parser.add_argument("--runs", type=int, default=3, help="number of runs of each kind")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as directory:
        place = make_inputs(Path(directory), options.groups)
        measure_engine(place, options.samples, options.runs)
        measure_tiny_policy(place, options.runs)
        measure_adapter(place, options.runs)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of episodes."""

    index: MailIndex
    tokenizer: Any
    scenarios: list[Scenario]
    seconds: dict[str, float]
    """Time that the engine spent on the index and on encoding, by part."""


@dataclass(frozen=True, slots=True)
class Run:
    """Numbers of one run of episodes."""

    episodes: int
    calls: int
    """Number of tool calls."""
    tokens: int
    """Number of tokens that the policy saw and sampled."""
    seconds: float

    @property
    def pace(self) -> float:
        """Tool calls per second."""
        return self.calls / self.seconds


def make_inputs(directory: Path, groups: int) -> Inputs:
    """Write an index of synthetic mail, and return it with this number of questions."""
    mail = synthesize_mail(3, 12, 3600)
    write_mail(mail, directory)
    build_mail_index([f"jsonl:{directory / MAIL_FILE}"], directory / "index")
    seconds: dict[str, float] = defaultdict(float)
    tokenizer = make_tokenizer(mail)
    return Inputs(MailIndex(directory / "index"), tokenizer, list(mail.scenarios)[:groups], seconds)


def make_tokenizer(mail: SyntheticMail) -> Any:
    """Train a tokenizer on the mail, so that it splits words as a real tokenizer does."""
    texts = (f"{each['message_id']} {each['subject']}\n{each['body']}" for each in mail.messages)
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=train(texts, VOCABULARY), chat_template=QWEN2_5, name_or_path="benchmark")


async def run_all(place: Inputs, policy: Callable[[Scenario], Policy], samples: int, at_once: int) -> Run:
    """Run a group of each question, and check that all episodes end with an answer.

    Index and chat format are new, so that nothing is cached from another run.
    """
    index, chat = TimedIndex(place.index.path.parent, place.seconds), TimedFormat(place.tokenizer, place.seconds)

    async def episode(about: Scenario, sample: int, attempt: int) -> Trajectory:
        environment = EmailEnvironment(index, about, LIMITS.max_turns)
        tools = environment.toolbox.schemas()
        prompt = chat.encode_prompt(environment.system_prompt(), environment.user_prompt(), tools)
        seed = f"{about.id}/{sample}/{attempt}"
        session = TokenChatSession(policy(about), chat, prompt, tools, Sampling(), LIMITS.max_context, seed)
        return await run_episode(session, EpisodeStart(environment, "", LIMITS, threads, sample))

    episodes = calls = tokens = 0
    async with ToolThreads() as threads:
        started = time.perf_counter()
        async for group in RolloutEngine(episode, at_once).run(place.scenarios, samples):
            for trajectory in group.trajectories:
                assert trajectory.ending == "answer", f"{trajectory.ending}: {trajectory.detail}"
                episodes += 1
                calls += trajectory.turns
                tokens += trajectory.prompt_tokens + trajectory.sampled_tokens
        return Run(episodes, calls, tokens, time.perf_counter() - started)


def measure_engine(place: Inputs, samples: int, runs: int) -> None:
    """Measure tool calls per second with a policy that answers at once, and the share of each part."""

    codec = place.tokenizer.backend_tokenizer
    encode = cache(lambda text: tuple(codec.encode(text, add_special_tokens=False).ids))
    finds = {about.id: search_words(place.index, about) for about in place.scenarios}

    def policy(about: Scenario) -> Policy:
        return Searcher(finds[about.id], encode)

    asyncio.run(run_all(place, policy, 1, AT_ONCE))  # warm up the index
    together, apart, alone = [], [], []
    parts: list[dict[str, float]] = []
    for _ in range(runs):
        together.append(asyncio.run(run_all(place, policy, samples, AT_ONCE)))
        apart.append(asyncio.run(run_all(place, policy, 1, AT_ONCE)))
        place.seconds.clear()
        alone.append(asyncio.run(run_all(place, policy, samples, 1)))
        parts.append(place.seconds.copy())
    first = together[0]
    paces = {
        f"{AT_ONCE} at once, groups of {samples}": [run.pace for run in together],
        f"{AT_ONCE} at once, each question once": [run.pace for run in apart],
        f"one after another, groups of {samples}": [run.pace for run in alone],
    }
    show(
        f"The engine, tool calls per second: {first.episodes:,} episodes of {first.calls / first.episodes:.1f} calls "
        f"and {first.tokens / first.episodes:,.0f} tokens",
        ["", "median", "best", "worst", "against one after another"],
        [[name, *spread(each), ratio(each, [run.pace for run in alone])] for name, each in paces.items()],
    )
    shares = {
        name: statistics.median(each[name] / run.seconds for each, run in zip(parts, alone, strict=True))
        for name in ("search", "read", "encoding")
    }
    shares["engine, threads, parsing, policy"] = 1 - sum(shares.values())
    show(
        "Share of the time by part, one after another",
        ["part", "share"],
        [[name, f"{share:.0%}"] for name, share in shares.items()],
    )


def measure_tiny_policy(place: Inputs, runs: int) -> None:
    """Measure rollouts per second of the tiny policy."""
    paces: dict[str, list[float]] = defaultdict(list)
    together, alone, plain, here = (
        f"vLLM, {AT_ONCE} at once",
        "vLLM, one after another",
        "vLLM with its defaults, one after another",
        f"in this process, {AT_ONCE} at once",
    )
    with tempfile.TemporaryDirectory() as logs, ExitStack() as servers:
        served = {}
        for number, (name, options) in enumerate(_SERVERS.items()):
            server = VLLMServer(TINY, log=Path(logs) / f"{number}.log", options=replace(options, name="tiny"))
            served[name] = PolicyName("vllm", "tiny", (servers.enter_context(server).url,))
            asyncio.run(rollouts(place, served[name], place.scenarios[-AT_ONCE:], AT_ONCE))  # the first is slower
        for run in range(runs):
            some = place.scenarios[run::_ALONE]
            paces[together].append(asyncio.run(rollouts(place, served[_OURS], place.scenarios, AT_ONCE)))
            paces[alone].append(asyncio.run(rollouts(place, served[_OURS], some, 1)))
            paces[plain].append(asyncio.run(rollouts(place, served[_THEIRS], some, 1)))
    in_process = PolicyName("transformers", str(TINY))
    some = place.scenarios[::_HERE]
    paces[here] = [asyncio.run(rollouts(place, in_process, some, AT_ONCE)) for _ in range(runs)]
    show(
        "Rollouts of the tiny policy per second",
        ["", "median", "best", "worst", "against one after another", "against vLLM's defaults"],
        [
            [name, *spread(paces[name], 2), ratio(paces[name], paces[alone]), ratio(paces[name], paces[plain])]
            for name in (together, alone, plain, here)
        ],
    )


def measure_adapter(place: Inputs, runs: int) -> None:
    """Measure rollouts per second with an adapter that changes nothing, so that both servers give the same tokens."""
    paces: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as servers:
        adapter = Path(directory, "adapter")
        model = AutoModelForCausalLM.from_pretrained(TINY, local_files_only=True)
        get_peft_model(model, lora_config(LoraSettings(rank=16), model)).save_pretrained(str(adapter))
        served = {}
        for name, options in _SERVERS.items():
            server = servers.enter_context(VLLMServer(TINY, log=Path(directory, "vllm.log"), options=options))
            server.load_adapter("adapter", adapter)
            served[name] = PolicyName("vllm", "adapter", (server.url,))
            asyncio.run(rollouts(place, served[name], place.scenarios[-AT_ONCE:], AT_ONCE))  # the first is slower
        for _ in range(runs):
            for name, policy in served.items():
                paces[name].append(asyncio.run(rollouts(place, policy, place.scenarios[::2], AT_ONCE)))
    show(
        f"Rollouts of the tiny policy with an adapter per second, {AT_ONCE} at once",
        ["server", "median", "best", "worst", "against vLLM's defaults"],
        [[name, *spread(each, 2), ratio(each, paces[_THEIRS])] for name, each in paces.items()],
    )


async def rollouts(place: Inputs, name: PolicyName, scenarios: list[Scenario], at_once: int) -> float:
    """Return the rollouts per second of a policy, with `at_once` concurrent episodes."""
    limits = EpisodeLimits()
    async with open_policy(name, TINY, Sampling(max_tokens=160), limits) as run, ToolThreads() as threads:

        async def episode(about: Scenario, sample: int, attempt: int) -> Trajectory:
            environment = EmailEnvironment(place.index, about, limits.max_turns)
            return await run(EpisodeStart(environment, f"{about.id}/{attempt}", limits, threads, sample))

        started = time.perf_counter()
        groups = [group async for group in RolloutEngine(episode, at_once).run(scenarios)]
        assert not any(group.dropped for group in groups)
        return len(groups) / (time.perf_counter() - started)


def search_words(index: MailIndex, about: Scenario) -> dict[str, list[str]]:
    """Search for some words of a question, and return the ids that each search lists."""
    words = sorted(set(re.findall(r"\w{4,}", about.question)), key=lambda word: (-len(word), word))[:6]
    environment = EmailEnvironment(index, about, LIMITS.max_turns)
    return {word: re.findall(r"^  id: (<\S+@\S+>)", environment.search_inbox([word]), re.M) for word in words}


class Searcher:
    """A policy that answers at once, one object per episode, with precomputed search results.

    It makes two searches with words of the question, a third if these found nothing, reads a message, and answers. The
    seed decides about words and messages, so that the samples of a question differ.
    """

    def __init__(self, finds: dict[str, list[str]], encode: Callable[[str], tuple[int, ...]]) -> None:
        self._finds, self._encode = finds, encode
        self._found: list[str] = []
        self._searches = 0
        self._has_read = False

    async def sample(
        self,
        prompt_ids: Sequence[int],  # noqa: ARG002
        sampling: Sampling,
        *,
        stop_ids: Sequence[int],
        seed: int,
    ) -> Completion:
        ids = (*self._encode(self._next(seed)), *stop_ids[:1])
        assert len(ids) <= sampling.max_tokens
        return Completion(ids, (0.0,) * len(ids), "stop", "searcher")

    def _next(self, seed: int) -> str:
        if self._searches < (2 if self._found else 3):
            self._searches += 1
            word = list(self._finds)[seed % len(self._finds)]
            self._found += self._finds[word]
            return call("search_inbox", keywords=[word])
        if self._found and not self._has_read:
            self._has_read = True
            return call("read_email", message_id=self._found[seed % len(self._found)])
        return call("return_final_answer", answer="It is done.", message_ids=self._found[:1])


@contextmanager
def timing(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Add the time of the block to a part; it is exact if only one thread works at a time."""
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds[part] += time.perf_counter() - started


class TimedIndex(MailIndex):
    def __init__(self, directory: Path, seconds: dict[str, float]) -> None:
        super().__init__(directory)
        self._seconds = seconds

    def search(self, *arguments: Any, **named: Any) -> list[Hit]:
        with timing(self._seconds, "search"):
            return super().search(*arguments, **named)

    def read(self, *arguments: Any, **named: Any) -> Message:
        with timing(self._seconds, "read"):
            return super().read(*arguments, **named)


class TimedFormat(ChatFormat):
    def __init__(self, tokenizer: Any, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        super().__init__(tokenizer)

    def encode_prompt(self, system: str, user: str, tools: list[dict[str, Any]]) -> Encoded:
        with timing(self._seconds, "encoding"):
            return super().encode_prompt(system, user, tools)

    def encode_results(self, *arguments: Any, **named: Any) -> Encoded:
        with timing(self._seconds, "encoding"):
            return super().encode_results(*arguments, **named)


if __name__ == "__main__":
    main()
