"""Load agents, and run them: Python functions, LangGraph graphs, agents of the OpenAI Agents SDK, and programs."""

import asyncio
import inspect
import sys
import uuid
from typing import Any, Protocol

from gumshoe.environments.registry import FINAL_ANSWER
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.gateway.agent_answers import ReturnedAnswer, read_answer
from gumshoe.gateway.agent_clock import AgentClock
from gumshoe.gateway.agent_errors import AgentFailedError, AgentsHangError, describe_exception
from gumshoe.gateway.agent_processes import ProgramAgent
from gumshoe.gateway.agent_task import AgentTask, _task
from gumshoe.gateway.agent_threads import run_agent
from gumshoe.plugins import import_attribute
from gumshoe.rollouts.agent_settings import AgentSettings

MAX_EPISODES = 256
"""Maximum number of episodes of a Python agent at once."""


class Agent(Protocol):
    """Run one episode."""

    async def __call__(self, task: AgentTask, clock: AgentClock) -> ReturnedAnswer:
        """Run the episode of a task, and return the agent's answer.

        Nothing of the agent runs any more when this returns, raises or was cancelled, except Python code that blocks or
        ignores its cancellation.

        Raises:
            AgentFailedError: if the agent raised an exception, or returned no usable answer.
            AgentCrashedError: if its process was killed, or could not be started.
            AgentDeadlineError: if it did not end in time. The clock starts with the agent.
            UnavailableError: if the agent raised it, which says that something else has failed.
            AgentsHangError: if too many episodes have not ended after their deadline.
        """
        ...


def load_agent(settings: AgentSettings) -> Agent:
    """Load an agent.

    The name of a Python agent may be that of a function, which takes the task; of a LangGraph graph or another object
    with `ainvoke`; or of an `Agent` of the OpenAI Agents SDK. A function may also return a graph or an `Agent`, which
    is then run.

    Raises:
        UsageError: if it cannot be imported, is something else, or its program does not exist.
    """
    if settings.name is None:
        return ProgramAgent(settings)
    return PythonAgent(_import(settings.name))


def _import(name: str) -> Any:
    place, _, attributes = name.partition(":")
    first, *rest = attributes.split(".")
    found = import_attribute(f"agent {name}", place, first, "gateway.agent-import-failed")
    for each in rest:
        found = getattr(found, each, None)
    if found is None:
        raise UsageError("gateway.agent-not-found", f"agent {name}: {place} has no attribute {attributes}")
    if not (callable(found) or _is_openai_agent(found) or _is_runnable(found)):
        hint = "; compile the graph first" if hasattr(found, "compile") else ""
        raise UsageError(
            "gateway.invalid-agent",
            f"agent {name}: got {type(found).__name__}, expected a function, a compiled LangGraph graph or an Agent of "
            f"the OpenAI Agents SDK{hint}",
        )
    return found


def _is_runnable(found: Any) -> bool:
    return hasattr(found, "ainvoke") and not isinstance(found, type)


def _is_openai_agent(found: Any) -> bool:
    """Return True for an agent of the OpenAI Agents SDK. Its module, `agents`, is loaded if there is one."""
    module = sys.modules.get("agents")
    kind = getattr(module, "Agent", None)
    return hasattr(module, "Runner") and isinstance(kind, type) and isinstance(found, kind)


class PythonAgent:
    """Run a Python object. See `Agent`."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._slots = asyncio.Semaphore(MAX_EPISODES)

    async def __call__(self, task: AgentTask, clock: AgentClock) -> ReturnedAnswer:
        """Run one episode. See `Agent`."""
        async with self._slots, clock.limit():
            return await run_agent(self._drive(task))

    async def _drive(self, task: AgentTask) -> ReturnedAnswer:
        """Run the agent, in the event loop of agents, and read its answer or its exception, whose code may block."""
        _task.set(task)
        try:
            return read_answer(await self._run(task))
        except (AgentFailedError, AgentsHangError, UnavailableError):
            raise
        except BaseException as error:
            if _is_cancelled(error):
                raise
            raise AgentFailedError(
                "gateway.agent-raised", f"the agent raised {describe_exception(error, task.api_key)}"
            ) from None

    async def _run(self, task: AgentTask) -> Any:
        """Run the agent, and return what it returns."""
        found = self._agent
        if not (_is_openai_agent(found) or _is_runnable(found)):
            found = await _call(found, task)
        if _is_openai_agent(found):
            return await _run_openai_agent(found, task)
        return await _invoke(found, task) if _is_runnable(found) else found


def _is_cancelled(error: BaseException) -> bool:
    """Return True if the current task is cancelled; agents may raise CancelledError themselves."""
    current = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and current is not None and current.cancelling() > 0


async def _call(function: Any, task: AgentTask) -> Any:
    """Call a function: in the event loop if it is async, or else in a thread with a copy of the context."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return await function(task)
    found = await asyncio.to_thread(function, task)
    return await found if inspect.isawaitable(found) else found


async def _invoke(graph: Any, task: AgentTask) -> Any:
    """Invoke a graph with the prompts of an episode. Its own limit of steps applies."""
    messages = [
        {"role": "system", "content": task.system_prompt},
        {"role": "user", "content": task.user_prompt},
    ]
    given = {"base_url": task.base_url, "api_key": task.api_key, "model": task.model, "task": task}
    # Graphs with a checkpointer need an id of the conversation.
    return await graph.ainvoke(
        {"messages": messages}, config={"configurable": {**given, "thread_id": uuid.uuid4().hex}}
    )


async def _run_openai_agent(agent: Any, task: AgentTask) -> Any:
    """Run an agent of the OpenAI Agents SDK. The gateway limits its turns, and nothing is sent to OpenAI."""
    from agents import OpenAIProvider, RunConfig, Runner, StopAtTools
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    client = AsyncOpenAI(
        base_url=task.base_url,
        api_key=task.api_key,
        http_client=DefaultAsyncHttpxClient(trust_env=False),  # the gateway is on this machine, behind no proxy
    )
    async with client:
        config = RunConfig(model_provider=OpenAIProvider(openai_client=client), tracing_disabled=True)
        own: dict[str, Any] = {"instructions": task.system_prompt} if agent.instructions is None else {}
        if agent.tool_use_behavior == "run_llm_again":  # turns after the answer are of no use
            own["tool_use_behavior"] = StopAtTools(stop_at_tool_names=[FINAL_ANSWER])
        return await Runner.run(agent.clone(**own), task.user_prompt, context=task, max_turns=None, run_config=config)
