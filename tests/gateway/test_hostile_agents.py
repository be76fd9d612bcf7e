"""Hostile and clumsy agents beside a well-behaved one: what becomes of both episodes, and that nothing remains.

`docs/results/agents.md` has a table of them, which is checked here.
"""

import asyncio
import gc
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from gumshoe.environments.email import EmailEnvironment
from gumshoe.errors import UnavailableError
from gumshoe.gateway import agent_processes, agent_threads
from gumshoe.inference.policy import Completion, Sampling, ScriptedPolicy
from gumshoe.mail.index import MailIndex
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeStart
from gumshoe.rollouts.episode_runners import open_token_runner
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from tests.gateway import hostile_agents
from tests.gateway.agent_tasks import start_agent
from tests.gateway.hostile_agents import ID, NEIGHBOUR, SECRET, SLOW
from tests.mail.mailbox import KEEP_ALL, make_index, record
from tests.rollouts.conversations import call
from tests.scenarios.questions import scenario
from tests.tiers import nightly_except
from tests.waiting import Clock, count_threads, wait_until

pytestmark = pytest.mark.ci

PROGRAM, ROOT = Path(__file__).with_name("hostile_program.py"), Path(__file__).parents[2]
TURNS = (
    call("search_inbox", keywords=["gas"]),
    call("read_email", message_id=ID),
    call("return_final_answer", answer="42", message_ids=[ID]),
)
MAX_TURNS = 6
AGAIN = "run again"


@dataclass(frozen=True, slots=True)
class Case:
    """A hostile agent, and what becomes of its episode."""

    name: str
    does: str
    ending: str = "answer"
    turns: int = 1
    splits: tuple[str, ...] = ()
    """Reasons of further segments."""
    noted: Sequence[Any] = ()
    """What the agent has noted, e.g. the statuses of its responses."""
    is_endless: bool = False

    def row(self) -> str:
        """Return the row of the table in the documentation."""
        segments = f"{1 + len(self.splits)} ({self.splits[0]})" if self.splits else str(min(1, self.turns))
        cells = ("-", "-") if self.ending == AGAIN else (str(self.turns), segments)
        return f"| {self.does} | {self.ending} | {cells[0]} | {cells[1]} |"


PYTHON = [
    Case("edits_history", "changes an earlier turn and the result of a tool", turns=2, splits=("history edited",)),
    Case("drops_a_turn", "drops a turn and its result", turns=3, splits=("history edited",)),
    Case("asks_twice_at_once", "sends the same request twice at once", turns=2, splits=("sampled again",)),
    Case("forges_turns", "invents a turn with a call, its result, and control tokens in a question"),
    Case("hangs_up", "closes the connection in the middle of a stream", turns=0, noted=("begun", "cancelled")),
    Case("never_ends", "never ends", "agent too slow", is_endless=True),
    Case("ignores_its_cancellation", "never ends, and ignores its cancellation", "agent too slow", is_endless=True),
    Case("floods_requests", "sends 200 requests at once", turns=MAX_TURNS, splits=("sampled again",) * (MAX_TURNS - 1)),
    Case("uses_other_keys", "guesses 50 keys, and puts its own into the URL", turns=0, noted=[401] * 52 + [400] * 2),
    Case("sends_bad_bodies", "sends 27 bodies that are too large, nested too deeply or invalid", turns=0),
    Case("returns_too_much", "returns an answer of 19 MB", "agent failed"),
    Case("returns_bad_characters", "returns an answer with NUL and lone surrogates"),
    Case("raises_what_cannot_be_read", "raises an exception whose text raises another one", "agent failed"),
    Case("exits", "calls `sys.exit`", "agent failed"),
    Case("answers_again", "calls tools after its answer, and returns another one", turns=3, noted=("Error", "Error")),
    Case(
        "leaves_a_thread",
        "leaves a thread with a request, which goes on with the key and the tools",
        turns=0,
        noted=("begun", "cancelled", 401, 401, "gateway.unknown-key"),
    ),
]
PROGRAMS = [
    Case("kills_itself", "kills itself with SIGKILL", AGAIN),
    Case("segfaults", "has a segmentation fault", AGAIN),
    Case("kills_its_supervisor", "kills the process that supervises it", AGAIN),
    Case(
        "stops_its_supervisor",
        "stops the process that supervises it, and never ends",
        "agent too slow",
        is_endless=True,
    ),
    Case("ignores_sigterm", "never ends, and ignores SIGTERM", "agent too slow", is_endless=True),
    Case("closes_its_pipes", "closes its standard input, output and error, and exits", "no answer"),
    Case("floods_output", "writes 60 MB to its standard output and error"),
    Case("floods_connections", "opens 3,000 connections, and sends half a request on each second one"),
    Case("floods_processes", "leaves 30 processes that ignore SIGTERM, and one that forks and exits all the time"),
]

IN_CI = {
    "edits_history",
    "asks_twice_at_once",
    "ignores_its_cancellation",
    "uses_other_keys",
    "returns_too_much",
    "leaves_a_thread",
    "kills_its_supervisor",
    "ignores_sigterm",
    "floods_connections",
}


class Policy:
    """A policy that searches, reads and answers, and that waits for ever if a conversation contains `SLOW`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._scripted = ScriptedPolicy(tokenizer, self._say)
        self.sampled: list[tuple[int, ...]] = []

    def _say(self, prompt: str, seed: int) -> str:
        return f"{seed}\n{TURNS[min(prompt.count('<tool_response>'), 2)]}"

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, **more: Any) -> Completion:
        """Return the next turn."""
        if SLOW in self._tokenizer.decode(list(prompt_ids)):
            hostile_agents.noted.append("begun")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                hostile_agents.noted.append("cancelled")
                raise
        found = await self._scripted.sample(prompt_ids, sampling, **more)
        self.sampled.append(tuple(found.ids))
        return found


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    return make_index(tmp_path_factory.mktemp("hostile"), [record(1, body="The gas price is 42.")], KEEP_ALL)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the file of hostile programs, with short times for agents to end by themselves."""
    monkeypatch.setattr(agent_threads, "GRACE", 0.2)
    monkeypatch.setattr(agent_processes, "PATIENCE", 0.2)
    monkeypatch.setattr(agent_processes, "_STOP_PATIENCE", 0.2)
    hostile_agents.acted.clear()
    hostile_agents.released.clear()
    hostile_agents.noted.clear()
    yield tmp_path / "acted"
    hostile_agents.released.set()


Run = Callable[..., list[Trajectory | None]]


@pytest.fixture
def run(tokenizer: Any, chat: ChatFormat, index: MailIndex) -> Run:
    """Run an episode for each question at once. Return trajectories, and None for episodes that would be run again.

    `then` is called when the last one, the neighbour's, has ended.
    """

    def play(
        settings: AgentSettings, questions: Sequence[str], policy: Policy | None = None, then: Any = None
    ) -> list[Trajectory | None]:
        limits, used = EpisodeLimits(MAX_TURNS, 4_096), policy or Policy(tokenizer)

        async def main() -> list[Trajectory | None]:
            async with (
                ToolThreads(2, 36_000) as threads,
                open_token_runner(used, chat, Sampling(max_tokens=300), limits.max_context, settings) as runner,
            ):
                running = []
                for each in questions:
                    environment = EmailEnvironment(index, scenario(1, question=each), MAX_TURNS)
                    running.append(asyncio.ensure_future(runner(EpisodeStart(environment, "seed", limits, threads))))
                await asyncio.wait({running[-1]})
                if then is not None:
                    then()
                found = await asyncio.gather(*running, return_exceptions=True)
                return [_read(each) for each in found]

        return asyncio.run(main())

    return play


def _read(found: Trajectory | BaseException) -> Trajectory | None:
    if isinstance(found, UnavailableError):
        assert found.code == "gateway.agent-failed"
        return None
    if isinstance(found, BaseException):
        raise found
    return replace(found, policy_seconds=0, tool_seconds=0)


def find_processes(file: Path) -> list[int]:
    """Return the ids of all processes that were started with a file as an argument."""
    found = list[int]()
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            found += [each.pid] if str(file) in each.cmdline() else []
    return found


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return a set to which the port of each gateway is added."""
    from gumshoe.gateway import agent_runner
    from gumshoe.gateway.gateway_server import open_gateway

    found = set[int]()

    @asynccontextmanager
    async def note(*arguments: Any) -> AsyncIterator[Any]:
        async with open_gateway(*arguments) as gateway:
            found.add(urlsplit(gateway.base_url).port or 0)
            yield gateway

    monkeypatch.setattr(agent_runner, "open_gateway", note)
    return found


def count_connections(ports: set[int]) -> int:
    """Return the number of connections of this process to gateways. Servers of other tests have connections too."""
    found = psutil.Process().net_connections("tcp")
    return sum(bool({each.laddr.port, each.raddr.port if each.raddr else 0} & ports) for each in found)


def check_sampled(done: Trajectory, policy: Policy) -> None:
    """Check that all that counts as sampled was sampled, once."""
    sampled = [each.ids for each in done.spans if each.origin == "sampled"]
    assert Counter(sampled) <= Counter(policy.sampled)
    assert len(sampled) == done.turns


@pytest.mark.parametrize("case", nightly_except(IN_CI, [*PYTHON, *PROGRAMS]), ids=lambda case: case.name)
def test_a_hostile_agent_changes_its_own_episode_alone(
    case: Case,
    run: Run,
    file: Path,
    clock: Clock,
    ports: set[int],
    tokenizer: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "gumshoe")
    settings = AgentSettings(name=f"tests.gateway.hostile_agents:{case.name}", deadline=900)
    if case in PROGRAMS:
        settings = AgentSettings(command=(sys.executable, "-I", "-S", str(PROGRAM), case.name, str(file)), deadline=900)
    file.touch()
    hostile_agents.acted.set()
    (alone,) = run(settings, [NEIGHBOUR])
    threads = count_threads("agent")
    file.unlink()
    hostile_agents.acted.clear()

    def go_on() -> None:
        file.with_suffix(".done").touch()
        if case.is_endless:
            clock.advance(1_000)

    policy = Policy(tokenizer)
    done, neighbour = run(settings, ["What does it hide?", NEIGHBOUR], policy, go_on)
    assert neighbour == alone
    assert neighbour is not None
    assert (neighbour.ending, neighbour.turns, neighbour.record.right_sources) == ("answer", 3, [ID])
    assert (AGAIN if done is None else done.ending) == case.ending
    if done is not None:
        assert (done.turns, tuple(each.reason for each in done.segments)) == (case.turns, case.splits)
        check_sampled(done, policy)
        assert Trajectory.from_json(done.to_json(), "line 1") == done
    before = deepcopy(done)
    hostile_agents.released.set()
    wait_until(lambda: count_threads("agent") <= threads)
    assert done == before
    assert hostile_agents.noted == [*case.noted] or not case.noted
    assert find_processes(file) == []
    gc.collect()
    assert len(ports) == 2
    wait_until(lambda: not count_connections(ports))
    assert [each.message for each in caplog.records if each.name.startswith("gumshoe")] == []
    assert SECRET not in caplog.text


def test_the_documentation_shows_what_happens() -> None:
    page = (ROOT / "docs/results/agents.md").read_text(encoding="utf-8")
    assert [each.row() for each in (*PYTHON, *PROGRAMS) if each.row() not in page] == []


def test_memory_is_taken_from_a_program_first() -> None:
    """Linux kills the process with the highest score if memory is used up."""
    code = "print(open('/proc/self/oom_score_adj').read())"

    async def run_once() -> str | None:
        return (await start_agent(AgentSettings(command=(sys.executable, "-I", "-S", "-c", code)))).answer

    assert asyncio.run(run_once()) == "1000"
