"""A ReAct agent in LangGraph: it thinks, calls tools, and thinks again, until it has given the answer.

PYTHONPATH=. gumshoe rollout --agent examples.langgraph_email.agent:graph …
"""

from typing import Literal

from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

ANSWER_TOOL = "return_final_answer"


async def think(state: MessagesState, config: RunnableConfig) -> dict[str, list[AnyMessage]]:
    """Let the model write the next turn. Gumshoe passes the model's address, its key and the tools of the episode."""
    given = config["configurable"]
    model = ChatOpenAI(model=given["model"], base_url=given["base_url"], api_key=given["api_key"])
    answer = await model.bind_tools(given["task"].tools.langchain()).ainvoke(state["messages"], config)
    return {"messages": [answer]}


async def act(state: MessagesState, config: RunnableConfig) -> dict[str, list[AnyMessage]]:
    """Run the calls of the last turn."""
    return await ToolNode(config["configurable"]["task"].tools.langchain()).ainvoke(state, config)


def needs_tools(state: MessagesState) -> Literal["act", "__end__"]:
    """Return the node after a turn: a turn without calls is the answer."""
    return "act" if last_turn(state).tool_calls else "__end__"


def has_answered(state: MessagesState) -> Literal["think", "__end__"]:
    """Return the node after calls: the answer ends the episode."""
    is_answer = any(call["name"] == ANSWER_TOOL for call in last_turn(state).tool_calls)
    return "__end__" if is_answer else "think"


def last_turn(state: MessagesState) -> AIMessage:
    """Return the last message of the model."""
    return next(each for each in reversed(state["messages"]) if isinstance(each, AIMessage))


builder = StateGraph(MessagesState)
builder.add_node(think)
builder.add_node(act)
builder.add_edge(START, "think")
builder.add_conditional_edges("think", needs_tools)
builder.add_conditional_edges("act", has_answered)
graph = builder.compile()
