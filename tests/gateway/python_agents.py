"""Python agents of every kind, which tests name as `tests.gateway.python_agents:NAME`."""

import asyncio
import functools
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

from agents import Agent, StopAtTools, function_tool
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from openai import AsyncOpenAI, OpenAI

from gumshoe.errors import UnavailableError
from gumshoe.gateway.agent_task import AgentTask, current_task
from tests.gateway.agent_events import events, released


async def async_function(task: AgentTask) -> str:
    async with AsyncOpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        given = await client.chat.completions.create(model=task.model, messages=[{"role": "user", "content": "Hi."}])
    calls = given.choices[0].message.tool_calls or []
    return f"{calls[0].type} {current_task().question}"


def sync_function(task: AgentTask) -> str:
    with OpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        given = client.chat.completions.create(model=task.model, messages=[{"role": "user", "content": "Hi."}])
    calls = given.choices[0].message.tool_calls or []
    return f"{calls[0].type} {current_task().question}"


async def blocking_function(task: AgentTask) -> str:
    """Call the model with a client that is not async, and so block the event loop."""
    return sync_function(task)


def wrapped_function(task: AgentTask) -> Any:
    """Return a coroutine, as some decorators of async functions do."""
    return async_function(task)


partial_function = functools.partial(lambda first, task: sync_function(task) if first else "", True)


class CallableAgent:
    async def __call__(self, task: AgentTask) -> str:
        return await async_function(task)


class Holder:
    agent = CallableAgent()


@dataclass
class ClassAgent:
    """A class whose instances have `ainvoke`."""

    task: AgentTask

    async def ainvoke(self, given: Any, config: Any) -> str:
        return f"function {given['messages'][1]['content'].partition('. ')[2]}" if config else ""


async def call_model(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    given = config["configurable"]
    model = ChatOpenAI(model=given["model"], base_url=given["base_url"], api_key=given["api_key"])
    answer = await model.ainvoke(state["messages"])
    return {"messages": [answer, AIMessage(f"{answer.tool_calls[0]['name']} {current_task().question}")]}


def call_model_in_thread(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    given = config["configurable"]
    model = ChatOpenAI(model=given["model"], base_url=given["base_url"], api_key=given["api_key"])
    answer = model.invoke(state["messages"])
    return {"messages": [answer, AIMessage(f"{answer.tool_calls[0]['name']} {current_task().question}")]}


builder = StateGraph(MessagesState)
builder.add_node("model", call_model)
builder.add_edge(START, "model")
graph = builder.compile(checkpointer=InMemorySaver())

sync_builder = StateGraph(MessagesState)
sync_builder.add_node("model", call_model_in_thread)
sync_builder.add_edge(START, "model")
sync_graph = sync_builder.compile()


def graph_of_task(task: AgentTask) -> Any:
    """Return LangChain's own agent."""
    from langchain.agents import create_agent

    model = ChatOpenAI(model=task.model, base_url=task.base_url, api_key=task.api_key)
    return create_agent(model, task.tools.langchain())


async def async_graph_of_task(task: AgentTask) -> Any:
    return graph_of_task(task)


def chain(task: AgentTask) -> Any:
    model = ChatOpenAI(model=task.model, base_url=task.base_url, api_key=task.api_key)
    prompt = ChatPromptTemplate.from_messages([("placeholder", "{messages}")])
    return prompt | model | RunnableLambda(lambda turn: f"{turn.tool_calls[0]['name']} {current_task().question}")


@function_tool
async def search_inbox(keywords: list[str]) -> str:
    """Search the inbox."""
    return await current_task().tools.call_async("search_inbox", keywords=keywords)


openai_agent: Agent[AgentTask] = Agent(
    name="Search", tools=[search_inbox], tool_use_behavior=StopAtTools(stop_at_tool_names=["search_inbox"])
)


def openai_agent_of_task(task: AgentTask) -> Agent[AgentTask]:
    return Agent(name="Search", instructions="My own prompt.", tools=[*task.tools.openai_agents()])


def raise_error(_: AgentTask) -> NoReturn:
    raise ValueError(f"no good: {current_task().api_key}")


async def raise_group(task: AgentTask) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(raise_error, task))


def raise_timeout(_: AgentTask) -> NoReturn:
    raise TimeoutError("of the agent")


def raise_stop_iteration(_: AgentTask) -> str:
    return next(iter([]))


async def raise_cancelled(_: AgentTask) -> NoReturn:
    raise asyncio.CancelledError


def exit_function(_: AgentTask) -> NoReturn:
    sys.exit(3)


async def exit_task(_: AgentTask) -> None:
    async def leave() -> None:
        sys.exit(3)

    await asyncio.create_task(leave())


def raise_unavailable(_: AgentTask) -> NoReturn:
    raise UnavailableError("agents.search-down", "the search server is down")


def return_nonsense(_: AgentTask) -> set[int]:
    return {1}


def return_nothing(_: AgentTask) -> None:
    return None


async def sleep_forever(_: AgentTask) -> None:
    events.append("started")
    try:
        await asyncio.sleep(1e9)
    finally:
        events.append("cleaned up")


def block_thread(_: AgentTask) -> str:
    events.append("started")
    released.wait()
    return "too late"


async def block_loop(_: AgentTask) -> str:
    events.append("started")
    released.wait()
    return "too late"


async def ignore_cancellation(_: AgentTask) -> str:
    events.append("started")
    while not released.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            events.append("ignored")
    return "too late"


number = 42
