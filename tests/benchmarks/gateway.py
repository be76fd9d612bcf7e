"""Measure what the gateway adds to a turn: `python -m tests.benchmarks.gateway`.

50 episodes run at once, each with a client of its own that asks for one turn after another, with three tools: a search,
two messages, an answer. So conversations have 2, 4, 6 and 8 messages. The policy takes about as long for a turn as a
fast model (`--pauses`, times 0.5 to 1.5) and computes nothing. The clients are in another process, so that their own
work is not measured; the time of a request is that between its first byte and the last one of its answer.

With `--http`, episodes do nothing but wait, so that only HTTP is measured: reading requests and writing completions.
"""

import argparse
import asyncio
import json
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.tools import Call
from gumshoe.gateway.admitted_episodes import ServedEpisode
from gumshoe.gateway.agent_episode import AgentEpisode
from gumshoe.gateway.gateway_server import open_gateway
from gumshoe.gateway.messages import ModelRequest, ModelResponse, SampledMessage
from gumshoe.inference.policy import Completion, Sampling
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeStart
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.turn_sampler import TurnSampler
from tests.benchmarks.mail import show
from tests.mail.mailbox import KEEP_ALL, make_index, record
from tests.rollouts.conversations import QWEN2_5, call, make_tokenizer
from tests.scenarios.questions import scenario

READ: dict[str, Any] = {"message_id": "<1@example.com>"}
TURNS = (
    call("search_inbox", keywords=["gas"]),
    call("read_email", **READ),
    call("read_email", **READ),
    call("return_final_answer", answer="42", message_ids=["<1@example.com>"]),
)


class PausingPolicy:
    """A policy that says the same turns in each episode, and takes these seconds for them."""

    def __init__(self, chat: ChatFormat, pauses: Sequence[float]) -> None:
        self._turns = [chat.encode_turn(each).ids for each in TURNS]
        self._pauses, self._said = pauses, 0

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, **_: Any) -> Completion:  # noqa: ARG002
        """Return the next turn."""
        await asyncio.sleep(self._pauses[self._said])
        ids = self._turns[self._said]
        self._said += 1
        return Completion(ids, (0.0,) * len(ids), "stop", "policy")


class PausingEpisode:
    """An episode that does not look at requests."""

    def __init__(self, pauses: Sequence[float]) -> None:
        self.key = secrets.token_urlsafe(32)
        self._pauses, self._said = pauses, 0

    async def complete(self, request: ModelRequest) -> ModelResponse:  # noqa: ARG002
        """Return the next turn."""
        await asyncio.sleep(self._pauses[self._said])
        self._said += 1
        turn = SampledMessage("", (Call("read_email", READ, f"call_{self._said}"),), "", "tool_calls")
        return ModelResponse("policy", (turn,), 1_000, 30, f"{self._said}-{secrets.token_hex(8)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20, help="episodes of each client")
    parser.add_argument("--pauses", type=float, nargs="+", default=[0.15, 0.5], help="seconds per turn of the policy")
    parser.add_argument("--http", action="store_true", help="measure HTTP alone")
    options = parser.parse_args()
    rows, alone = [], asyncio.run(measure_pause())
    for pause in options.pauses:
        first, *others = asyncio.run(measure(options.at_once, options.rounds + 1, pause, only_http=options.http))
        for name, rounds in (("first", [first]), ("others", others)):
            taken = [each for times, _ in rounds for each in times]
            quantiles = [f"{statistics.quantiles(taken, n=100)[at - 1]:.1f}" for at in (50, 90, 99)]
            busy = sum(each for _, each in rounds) / len(taken)
            rows.append([f"{1000 * pause:.0f} ms", name, f"{len(taken):,}", *quantiles, f"{busy:.2f}"])
    show(
        f"What the gateway adds to a turn, {options.at_once} episodes at once",
        ["turn", "episode of a client", "requests", "median, ms", "p90, ms", "p99, ms", "processor per request, ms"],
        rows,
    )
    print(f"{alone:.1f} ms of the medians are the timer: a pause without the gateway takes that much longer.")


async def measure_pause() -> float:
    """Return how many milliseconds a pause takes beyond its length, as the median."""
    taken = list[float]()
    for _ in range(20):
        started = time.perf_counter()
        await asyncio.sleep(0.1)
        taken.append(1000 * (time.perf_counter() - started - 0.1))
    return statistics.median(taken)


async def measure(at_once: int, rounds: int, pause: float, *, only_http: bool) -> list[tuple[list[float], float]]:
    """Return the time of each request beyond the policy's, and the processor time of all, in milliseconds, by round."""
    draw = random.Random(1)
    found = list[tuple[list[float], float]]()
    clients = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.benchmarks.gateway_clients"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    assert clients.stdin is not None
    assert clients.stdout is not None
    async with make_episodes() as (make, schemas), open_gateway() as gateway:
        for _ in range(rounds):
            with ExitStack() as stack:
                pauses = [[pause * draw.uniform(0.5, 1.5) for _ in TURNS] for _ in range(at_once)]
                episodes = [PausingEpisode(each) if only_http else make(each) for each in pauses]
                for each in episodes:
                    stack.enter_context(gateway.admit(each))
                given: dict[str, Any] = {
                    "address": gateway.base_url,
                    "keys": [each.key for each in episodes],
                    "tools": schemas,
                }
                given |= {"pauses": pauses, "apart": pause / at_once}
                started = time.thread_time()
                clients.stdin.write(json.dumps(given).encode() + b"\n")
                taken = [1000 * each for each in json.loads(await clients.stdout.readline())]
                found.append((taken, 1000 * (time.thread_time() - started)))
    clients.stdin.close()
    await clients.wait()
    return found


@asynccontextmanager
async def make_episodes() -> AsyncIterator[tuple[Callable[[Sequence[float]], ServedEpisode], list[dict[str, Any]]]]:
    """Yield a function that makes episodes with these pauses, and the schemas of their tools."""
    chat, limits = ChatFormat(make_tokenizer(QWEN2_5)), EpisodeLimits(len(TURNS), 100_000)
    with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as scratch:
        index = make_index(Path(scratch), [record(1, body="The gas price is 42.")], KEEP_ALL)
        async with ToolThreads() as threads:

            def make(pauses: Sequence[float]) -> AgentEpisode:
                start = EpisodeStart(EmailEnvironment(index, scenario(1), limits.max_turns), "seed", limits, threads)
                sampler = TurnSampler(PausingPolicy(chat, pauses), chat, Sampling(max_tokens=200))
                return AgentEpisode(start, sampler, limits.max_context, AgentSettings(name="some.agent:run"))

            yield make, make([]).toolbox.schemas()


if __name__ == "__main__":
    main()
