"""Episodes that answer at once, without a search: a policy trained on them can only memorize the answers."""

import asyncio
from pathlib import Path

from gumshoe.environments.registry import open_env
from gumshoe.inference.policy import Sampling, ScriptedPolicy
from gumshoe.inference.policy_names import TINY, load_tokenizer
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeStart, run_episode
from gumshoe.rollouts.sessions import token_chat_sessions
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from gumshoe.scenarios.scenario import Scenario
from gumshoe.scenarios.sources import load_scenarios
from tests.rollouts.conversations import call

TURNS = 6


def write_closed_book(index: Path, scenarios: Path, path: Path) -> Path:
    """Write an episode of the tiny policy for each scenario, and return the file."""
    env_factory = open_env(index).for_tiny()
    tokenizer = load_tokenizer(str(TINY))
    chat = ChatFormat(tokenizer)

    async def play(scenario: Scenario) -> Trajectory:
        answer = call("return_final_answer", answer=scenario.answer, message_ids=list(scenario.message_ids))
        policy = ScriptedPolicy(tokenizer, lambda prompt, seed: answer)  # noqa: ARG005
        environment = env_factory.new_environment(scenario, TURNS)
        async with ToolThreads() as threads:
            with token_chat_sessions(policy, chat, Sampling(0, max_tokens=300), 8192)(environment, "") as session:
                return await run_episode(session, EpisodeStart(environment, "", EpisodeLimits(TURNS), threads))

    episodes = [asyncio.run(play(each)) for each in load_scenarios(str(scenarios))]
    path.write_text("".join(f"{each.to_json()}\n" for each in episodes))
    return path
