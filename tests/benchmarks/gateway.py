"""Measure what the gateway adds to a turn: `python -m tests.benchmarks.gateway`.

50 episodes run at once, each with a client of its own that asks for one turn after another: a search, a message, an
answer. The policy takes 100 ms for each turn and computes nothing. The clients are in another process, so that their
own work is not measured; the time of a request is that between its first byte and the last one of its answer.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from gumshoe.environments.email import EmailEnvironment
from gumshoe.gateway.agent_episode import AgentEpisode
from gumshoe.gateway.gateway_server import open_gateway
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

PAUSE = 0.1  # seconds that the policy takes for a turn
TURNS = (
    call("search_inbox", keywords=["gas"]),
    call("read_email", message_id="<1@example.com>"),
    call("return_final_answer", answer="42", message_ids=["<1@example.com>"]),
)
RESULT = "The gas price is 42. " * 40


class PausingPolicy:
    """A policy that says the same three turns in each episode."""

    def __init__(self, chat: ChatFormat) -> None:
        self._turns = [chat.encode_turn(each).ids for each in TURNS]
        self._said = 0

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, **_: Any) -> Completion:  # noqa: ARG002
        """Return the next turn."""
        await asyncio.sleep(PAUSE)
        ids = self._turns[self._said % len(self._turns)]
        self._said += 1
        return Completion(ids, (0.0,) * len(ids), "stop", "policy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20, help="episodes of each client")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        print(json.dumps(asyncio.run(run_clients(json.loads(options.client)))))
        return
    taken = asyncio.run(measure(options.at_once, options.rounds))
    quantiles = statistics.quantiles(taken, n=100)
    show(
        f"What the gateway adds to a turn of {1000 * PAUSE:.0f} ms, {options.at_once} episodes at once",
        ["requests", "median, ms", "p90, ms", "p99, ms"],
        [[f"{len(taken):,}", *(f"{quantiles[at - 1]:.1f}" for at in (50, 90, 99))]],
    )


async def measure(at_once: int, rounds: int) -> list[float]:
    """Return the time of each request beyond that of the policy, in milliseconds."""
    chat, limits = ChatFormat(make_tokenizer(QWEN2_5)), EpisodeLimits(3, 100_000)
    taken = list[float]()
    with tempfile.TemporaryDirectory(prefix="gumshoe-benchmark-") as scratch:
        index = make_index(Path(scratch), [record(1, body="The gas price is 42.")], KEEP_ALL)
        async with ToolThreads() as threads, open_gateway() as gateway:
            for _ in range(rounds):
                with ExitStack() as stack:
                    keys, tools = [], list[Any]()
                    for number in range(at_once):
                        environment = EmailEnvironment(index, scenario(1), limits.max_turns)
                        tools = environment.toolbox.schemas()
                        start = EpisodeStart(environment, f"{number}", limits, threads)
                        sampler = TurnSampler(PausingPolicy(chat), chat, Sampling(max_tokens=200))
                        settings = AgentSettings(name="some.agent:run")
                        episode = AgentEpisode(start, sampler, limits.max_context, settings)
                        stack.enter_context(gateway.admit(episode))
                        keys.append(episode.key)
                    given = json.dumps({"address": gateway.base_url, "keys": keys, "tools": tools})
                    taken += json.loads(
                        await asyncio.to_thread(
                            subprocess.check_output, [sys.executable, "-m", __spec__.name, "--client", given]
                        )
                    )
    return taken


async def run_clients(given: dict[str, Any]) -> list[float]:
    """Run an episode for each key, all at once, and return the times of their requests beyond the policy's."""
    async with (
        httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_connections=None), timeout=60) as http,
        asyncio.TaskGroup() as group,
    ):
        apart = len(TURNS) * PAUSE / len(given["keys"])  # or all would ask in the same moment
        clients = [
            group.create_task(run_client(http, given, key, number * apart)) for number, key in enumerate(given["keys"])
        ]
    return [each for client in clients for each in client.result()]


async def run_client(http: httpx.AsyncClient, given: dict[str, Any], key: str, begin: float) -> list[float]:
    """Run one episode after `begin` seconds."""
    await asyncio.sleep(begin)
    messages: list[Any] = [
        {"role": "system", "content": "You search a mailbox. " * 40},
        {"role": "user", "content": "What is the price of gas?"},
    ]
    taken = list[float]()
    for _ in TURNS:
        body = json.dumps({"model": "policy", "messages": messages, "tools": given["tools"]}).encode()
        request = http.build_request(
            "POST", f"{given['address']}/chat/completions", content=body, headers={"authorization": f"Bearer {key}"}
        )
        started = time.perf_counter()
        answer = await http.send(request)
        taken.append(1000 * (time.perf_counter() - started - PAUSE))
        message = answer.json()["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": each["id"], "content": RESULT} for each in message.get("tool_calls", [])
        ]
        messages += [message, *results]
    return taken


if __name__ == "__main__":
    main()
