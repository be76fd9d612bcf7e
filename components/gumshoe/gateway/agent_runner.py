"""Run episodes with an agent that calls the policy and the tools through the gateway."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gumshoe.environments.base import Ending
from gumshoe.errors import UnavailableError
from gumshoe.gateway.agent_answers import ReturnedAnswer
from gumshoe.gateway.agent_episode import AgentEpisode
from gumshoe.gateway.agent_errors import AgentCrashedError, AgentDeadlineError, AgentFailedError
from gumshoe.gateway.agent_task import AgentTask
from gumshoe.gateway.agents import Agent, load_agent
from gumshoe.gateway.episode_mcp import create_episode_mcp
from gumshoe.gateway.episode_tools import EpisodeTools
from gumshoe.gateway.foreign_tools import ForeignTools, open_foreign_tools
from gumshoe.gateway.gateway_server import Gateway, open_gateway
from gumshoe.inference.policy import Completion, Policy, Sampling
from gumshoe.inference.vllm_policy import VLLMPolicy
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.episode import EpisodeRunner, EpisodeStart
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.rollouts.turn_sampler import TurnSampler

if TYPE_CHECKING:
    from gumshoe.inference.transformers_policy import TransformersPolicy

_MODEL = "policy"  # the name under which agents request it


class AgentUnavailableError(UnavailableError):
    """Report that an agent failed in a way that says nothing about the policy. The episode is run again."""


@asynccontextmanager
async def open_agent_runner(
    policy: "Policy | TransformersPolicy", chat: ChatFormat, sampling: Sampling, max_context: int, agent: AgentSettings
) -> AsyncIterator[EpisodeRunner]:
    """Yield a function that runs episodes of an agent with a policy, while the block runs.

    Raises:
        UsageError: if the agent cannot be loaded, or a server of its tools cannot be used.
        UnavailableError: if a server of its tools does not answer.
    """
    loaded = load_agent(agent)
    async with AsyncExitStack() as stack:
        foreign = await stack.enter_async_context(open_foreign_tools(agent.tools))
        gateway = await stack.enter_async_context(open_gateway(create_episode_mcp(foreign)))
        yield _AgentRunner(policy, chat, sampling, max_context, agent, loaded, gateway, foreign).run


@dataclass(frozen=True, slots=True)
class _AgentRunner:
    policy: "Policy | TransformersPolicy"
    chat: ChatFormat
    sampling: Sampling
    max_context: int
    settings: AgentSettings
    agent: Agent
    gateway: Gateway
    foreign: ForeignTools

    async def run(self, start: EpisodeStart) -> Trajectory:
        """Run one episode. See `EpisodeRunner`."""
        with _hold_server(self.policy) as policy:
            sampler = TurnSampler(policy, self.chat, self.sampling)
            episode = AgentEpisode(start, sampler, self.max_context, self.settings, self.foreign)
            with self.gateway.admit(episode) as admitted, closing(episode):  # also if it is cancelled or run again
                answer, ending, detail = await self._run_agent(episode, start)
                trajectory = await episode.end(answer.answer, answer.sources)
        if trajectory.ending == "no answer" and admitted.was_refused:
            raise AgentUnavailableError(
                "gateway.agent-refused",
                "the agent ended without an answer after the gateway was too busy for its requests; run fewer episodes "
                "at once",
            )
        if ending is not None and trajectory.ending == "no answer":
            trajectory.ending, trajectory.detail = ending, detail
        return trajectory

    async def _run_agent(self, episode: AgentEpisode, start: EpisodeStart) -> tuple[ReturnedAnswer, Ending | None, str]:
        """Return the agent's answer, and the ending and its details if the agent failed.

        Raises:
            AgentUnavailableError: if the failure is to be treated as one of infrastructure.
        """
        nothing, settings = ReturnedAnswer(None), self.settings
        found: Ending
        try:
            return await self.agent(self._make_task(episode, start), episode.clock), None, ""
        except AgentDeadlineError as error:
            found, detail, choice = "agent too slow", str(error), settings.on_deadline
        except AgentCrashedError as error:
            found, detail, choice = "agent failed", str(error), settings.on_crash
        except AgentFailedError as error:
            found, detail = "agent failed", str(error)
            choice = settings.on_error if episode.trajectory.turns else "retry"
            choice = "score" if episode.has_reached_limit else choice
        if episode.failure is None and not episode.has_answered and choice == "retry":
            raise AgentUnavailableError("gateway.agent-failed", f"the agent failed: {detail}")
        return nothing, found, detail

    def _make_task(self, episode: AgentEpisode, start: EpisodeStart) -> AgentTask:
        environment, gateway = start.environment, self.gateway
        scenario = environment.scenario
        return AgentTask(
            question=scenario.question,
            system_prompt=environment.system_prompt(),
            user_prompt=environment.user_prompt(),
            base_url=gateway.base_url,
            api_key=episode.key,
            model=_MODEL,
            mcp_url=gateway.mcp_url,
            tools=EpisodeTools(episode, self.foreign),
            inbox_address=scenario.inbox_address,
            query_date=scenario.query_date,
        )


@contextmanager
def _hold_server(policy: "Policy | TransformersPolicy") -> Iterator[Policy]:
    """Yield the policy of one episode: its requests go to the same server, which has computed their beginning."""
    if isinstance(policy, VLLMPolicy):
        with policy.open_conversation() as conversation:
            yield conversation
    else:
        yield policy if hasattr(policy, "sample") else _SingleTurns(policy)


@dataclass(frozen=True, slots=True)
class _SingleTurns:
    """Sample each turn in a conversation of its own: one that waits for its agent would delay all others."""

    policy: "TransformersPolicy"

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, stop_ids: Sequence[int], seed: int
    ) -> Completion:
        """Sample a turn. See `Policy.sample`."""
        with self.policy.open_conversation() as conversation:
            return await conversation.sample(prompt_ids, sampling, stop_ids=stop_ids, seed=seed)
