"""How fast rollouts are, in one run: `python -m tests.benchmarks.agent`.

The engine alone: episodes in a real index of synthetic mail, with a policy that answers at once, so that all the
time goes into tools, tokens and the engine; many at once, and one after another. The samples of a group begin with
the same prompt and often come by the same results; what the engine does where nothing repeats is shown beside it.

The tiny policy behind a real vLLM server, and in this process: many at once, and one after another, there and on a
server as vLLM has it. With an adapter: behind a server as Gumshoe starts it on a CPU, and behind one as vLLM has it.

Takes some minutes. Figures are medians unless they say otherwise.
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

from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from gumshoe.environments.email import EmailEnvironment
from gumshoe.inference.policy import Completion, Policy, Sampling
from gumshoe.inference.policy_names import TINY, PolicyName
from gumshoe.inference.vllm_plugin import ENABLE_VARIABLE
from gumshoe.inference.vllm_server import ServerOptions, VLLMServer
from gumshoe.mail.build import build_mail_index
from gumshoe.mail.index import Hit, MailIndex, Message
from gumshoe.rollouts.chat_format import ChatFormat, Encoded
from gumshoe.rollouts.engine import RolloutEngine
from gumshoe.rollouts.episode import EpisodeLimits, TokenChatSession, run_episode
from gumshoe.rollouts.sessions import open_policy
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.synthesis.mailboxes import MAIL_FILE, SyntheticMail, synthesize_mail, write_mail
from gumshoe.training.settings import LoraSettings
from tests.benchmarks.mail import ratio, show, spread
from tests.rollouts.conversations import QWEN2_5, call, train

AT_ONCE = 64
VOCABULARY = 4000
_ALONE, _HERE = 12, 4  # one after another and in this process, only every so many questions are asked
LIMITS = EpisodeLimits(max_turns=6, max_context=16_384)
_OURS, _THEIRS = "as Gumshoe starts it", "as vLLM has it"
_SERVERS = {
    _OURS: ServerOptions(),
    _THEIRS: ServerOptions(
        environment={ENABLE_VARIABLE: "", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}, arguments=("--block-size", "128")
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=8, help="episodes in a group")
    parser.add_argument("--groups", type=int, default=500, help="groups, each of another question (777 at most)")
    parser.add_argument("--runs", type=int, default=3, help="runs of each kind")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as directory:
        place = make_place(Path(directory), options.groups)
        engine_alone(place, options.samples, options.runs)
        with_the_tiny_policy(place, options.runs)
        with_an_adapter(place, options.runs)


@dataclass(frozen=True, slots=True)
class Place:
    """What episodes take place in."""

    index: MailIndex
    tokenizer: Any
    scenarios: list[Scenario]
    seconds: dict[str, float]
    """What the engine spent on the index and on encoding, by part."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of episodes came to."""

    episodes: int
    calls: int
    """Calls of tools."""
    tokens: int
    """All that the policy saw and sampled."""
    seconds: float

    @property
    def pace(self) -> float:
        """Tool calls a second."""
        return self.calls / self.seconds


def make_place(directory: Path, groups: int) -> Place:
    """An index of synthetic mail in a directory, and so many questions about it."""
    mail = synthesize_mail(3, 12, 3600)
    write_mail(mail, directory)
    build_mail_index([f"jsonl:{directory / MAIL_FILE}"], directory / "index")
    seconds: dict[str, float] = defaultdict(float)
    tokenizer = make_tokenizer(mail)
    return Place(MailIndex(directory / "index"), tokenizer, list(mail.scenarios)[:groups], seconds)


def make_tokenizer(mail: SyntheticMail) -> Any:
    """A tokenizer that knows the words of this mail as a real one knows those of its language."""
    texts = (f"{each['message_id']} {each['subject']}\n{each['body']}" for each in mail.messages)
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=train(texts, VOCABULARY), chat_template=QWEN2_5, name_or_path="benchmark")


async def run_all(place: Place, policy: Callable[[Scenario], Policy], samples: int, at_once: int) -> Run:
    """A group of each question, so many episodes at once; all have to end with an answer.

    Index and format are new ones: they remember nothing of another run.
    """
    index, chat = TimedIndex(place.index.path.parent, place.seconds), TimedFormat(place.tokenizer, place.seconds)

    async def episode(about: Scenario, sample: int, attempt: int) -> Trajectory:
        environment = EmailEnvironment(index, about, LIMITS.max_turns)
        prompt = chat.prompt(environment.system_prompt(), environment.user_prompt(), environment.toolbox.schemas())
        seed = f"{about.id}/{sample}/{attempt}"
        speaker = TokenChatSession(policy(about), chat, prompt, Sampling(), LIMITS.max_context, seed)
        return await run_episode(speaker, environment, sample, LIMITS, threads)

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


def engine_alone(place: Place, samples: int, runs: int) -> None:
    """Tool calls a second with a policy that answers at once, and where the time goes."""

    codec = place.tokenizer.backend_tokenizer
    encode = cache(lambda text: tuple(codec.encode(text, add_special_tokens=False).ids))
    finds = {about.id: looked_up(place.index, about) for about in place.scenarios}

    def policy(about: Scenario) -> Policy:
        return Searcher(finds[about.id], encode)

    asyncio.run(run_all(place, policy, 1, AT_ONCE))  # so that no run is the first to read the index
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
        f"The engine, tool calls a second: {first.episodes:,} episodes of {first.calls / first.episodes:.1f} calls and "
        f"{first.tokens / first.episodes:,.0f} tokens",
        ["what", "median", "best", "worst", "against one after another"],
        [[name, *spread(each), ratio(each, [run.pace for run in alone])] for name, each in paces.items()],
    )
    shares = {
        name: statistics.median(each[name] / run.seconds for each, run in zip(parts, alone, strict=True))
        for name in ("search", "read", "encoding")
    }
    shares["all else: engine, threads, parsing, policy"] = 1 - sum(shares.values())
    show(
        "Where the time goes, one after another",
        ["part", "share"],
        [[name, f"{share:.0%}"] for name, share in shares.items()],
    )


def with_the_tiny_policy(place: Place, runs: int) -> None:
    """Rollouts a second of the tiny policy."""
    paces: dict[str, list[float]] = defaultdict(list)
    together, alone, plain, here = (
        f"vLLM, {AT_ONCE} at once",
        "vLLM, one after another",
        "vLLM as it comes, one after another",
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
        "Rollouts of the tiny policy a second",
        ["what", "median", "best", "worst", "against one after another", "on vLLM as it comes"],
        [
            [name, *spread(paces[name], 2), ratio(paces[name], paces[alone]), ratio(paces[name], paces[plain])]
            for name in (together, alone, plain, here)
        ],
    )


def with_an_adapter(place: Place, runs: int) -> None:
    """Rollouts a second through an adapter that changes nothing, so that both servers say the same."""
    paces: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as servers:
        adapter = Path(directory, "adapter")
        model = AutoModelForCausalLM.from_pretrained(TINY, local_files_only=True)
        shape = LoraConfig(r=16, target_modules=list(LoraSettings().target_modules), task_type="CAUSAL_LM")
        get_peft_model(model, shape).save_pretrained(str(adapter))
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
        f"Rollouts of the tiny policy with an adapter a second, {AT_ONCE} at once",
        ["a server", "median", "best", "worst", "against vLLM's way"],
        [[name, *spread(each, 2), ratio(each, paces[_THEIRS])] for name, each in paces.items()],
    )


async def rollouts(place: Place, name: PolicyName, scenarios: list[Scenario], at_once: int) -> float:
    """Rollouts a second of a policy, so many at once."""
    limits = EpisodeLimits()
    async with open_policy(name, TINY, Sampling(max_tokens=160), limits) as speak, ToolThreads() as threads:

        async def episode(about: Scenario, sample: int, attempt: int) -> Trajectory:
            environment = EmailEnvironment(place.index, about, limits.max_turns)
            with speak(environment, f"{about.id}/{attempt}") as speaker:
                return await run_episode(speaker, environment, sample, limits, threads)

        started = time.perf_counter()
        groups = [group async for group in RolloutEngine(episode, at_once).run(scenarios)]
        assert not any(group.dropped for group in groups)
        return len(groups) / (time.perf_counter() - started)


def looked_up(index: MailIndex, about: Scenario) -> dict[str, list[str]]:
    """For some words of a question, the ids that a search for each lists."""
    words = sorted(set(re.findall(r"\w{4,}", about.question)), key=lambda word: (-len(word), word))[:6]
    environment = EmailEnvironment(index, about, LIMITS.max_turns)
    return {word: re.findall(r"^  id: (<\S+@\S+>)", environment.search_inbox([word]), re.M) for word in words}


class Searcher:
    """A policy that answers at once: two searches with words of the question, a third where they found nothing, a
    message read, an answer. One an episode: it knows beforehand what its searches find, and has its words ready.

    The seed decides about words and messages: the samples of one question do not all do the same.
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
def noted(seconds: dict[str, float], part: str) -> Iterator[None]:
    """Add what the block takes. Exact where one thread at a time does any work."""
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
        with noted(self._seconds, "search"):
            return super().search(*arguments, **named)

    def read(self, inbox: str, message_id: str) -> Message:
        with noted(self._seconds, "read"):
            return super().read(inbox, message_id)


class TimedFormat(ChatFormat):
    def __init__(self, tokenizer: Any, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        super().__init__(tokenizer)

    def prompt(self, system: str, user: str, tools: list[dict[str, Any]]) -> Encoded:
        with noted(self._seconds, "encoding"):
            return super().encode_prompt(system, user, tools)

    def glue(self, result: str) -> Encoded:
        with noted(self._seconds, "encoding"):
            return super().encode_tool_result(result)


if __name__ == "__main__":
    main()
