"""The tools of an episode in Python, LangChain and the OpenAI Agents SDK: same results, same record, any thread."""

import asyncio
import inspect
import json
import sys
import threading
import typing
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gumshoe.environments.email import EmailEnvironment
from gumshoe.environments.tools import Call, Toolbox, ToolError
from gumshoe.errors import UsageError
from gumshoe.gateway.agent_episode import AgentEpisode
from gumshoe.gateway.gateway_errors import LimitReachedError, UnknownKeyError
from gumshoe.mail.index import MailIndex
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from tests.errors import raises
from tests.gateway.tool_episodes import ID_OF_ANN, SECRET_OF_ANN, make_two_inboxes, open_episode
from tests.scenarios.questions import scenario

if TYPE_CHECKING:
    from gumshoe.gateway.episode_tools import EpisodeTools

Work = Callable[["EpisodeTools", AgentEpisode], Awaitable[Any]]
SEARCH = {"keywords": ["gas", "price"]}
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a word up.",
        "parameters": {
            "type": "object",
            "properties": {
                "language": {"type": "string", "description": "Its language."},
                "word": {"type": "string", "description": "The word."},
                "most": {"type": ["integer", "null"]},
                "deep": {"type": "object"},
            },
            "required": ["word"],
        },
    },
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    return make_two_inboxes(tmp_path_factory.mktemp("tools"))


@pytest.fixture
def play(chat: ChatFormat, index: MailIndex) -> Callable[..., AgentEpisode]:
    """Run an agent with the tools of an episode, in the loop of the gateway, and return the episode."""
    from gumshoe.gateway.episode_tools import EpisodeTools

    def run(work: Work, **settings: Any) -> AgentEpisode:
        async def main() -> AgentEpisode:
            async with open_episode(chat, index, **settings) as episode:
                await work(EpisodeTools(episode), episode)
                return episode

        return asyncio.run(main())

    return run


Play = Callable[[Work], AgentEpisode]


@pytest.fixture
def expected(index: MailIndex) -> Callable[[str, dict[str, Any]], str]:
    """Return the result of a call in Gumshoe's own loop."""
    toolbox = EmailEnvironment(index, scenario(1), 10).toolbox

    def run(name: str, arguments: dict[str, Any]) -> str:
        try:
            return toolbox.run(Call(name, arguments))
        except ToolError as error:
            return f"Error: {error}"

    return run


Expected = Callable[[str, dict[str, Any]], str]


async def run_elsewhere(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run something in a thread with an event loop of its own, as agents are run."""

    async def await_it() -> Any:
        return await work()

    return await asyncio.to_thread(lambda: asyncio.run(await_it()))


async def _gather(calls: Iterable[Awaitable[str]]) -> list[str]:
    return await asyncio.gather(*calls)


# Python functions.


def test_functions_look_like_the_tools_of_the_environment(play: Play, index: MailIndex) -> None:
    own = EmailEnvironment(index, scenario(1), 10).toolbox

    async def work(tools: "EpisodeTools", _: AgentEpisode) -> None:
        for functions in (tools.functions(), tools.async_functions()):
            assert [each.__name__ for each in functions] == [each.__name__ for each in own.tools]
            for function, tool in zip(functions, own.tools, strict=True):
                assert inspect.signature(function) == inspect.signature(tool)
                assert function.__doc__ == tool.__doc__
                hints = typing.get_type_hints(function)
                assert hints == {name: kind for name, kind in typing.get_type_hints(tool).items() if name in hints}
            assert Toolbox(list(functions)).schemas() == own.schemas()  # type: ignore[arg-type]
        assert all(inspect.iscoroutinefunction(each) for each in tools.async_functions())
        assert not any(map(inspect.iscoroutinefunction, tools.functions()))
        assert tools.schemas() == own.schemas()

    play(work)


def test_functions_are_called_in_threads_and_recorded(play: Play, expected: Expected) -> None:
    async def work(tools: "EpisodeTools", episode: AgentEpisode) -> None:
        search, read, answer = tools.functions()
        found = await asyncio.to_thread(search, ["gas", "price"])
        assert found == expected("search_inbox", SEARCH)
        assert await asyncio.to_thread(read, message_id=ID_OF_ANN) == expected("read_email", {"message_id": ID_OF_ANN})
        assert await asyncio.to_thread(read, "x") == expected("read_email", {"message_id": "x"})
        await asyncio.to_thread(answer, "4711", [ID_OF_ANN])
        assert (await episode.end()).ending == "answer"

    record = play(work).trajectory.record
    assert (record.found, record.read, record.tool_errors, record.answer) == ([ID_OF_ANN], [ID_OF_ANN], 1, "4711")


def test_async_functions_are_called_in_any_loop(play: Play, expected: Expected) -> None:
    async def work(tools: "EpisodeTools", _: AgentEpisode) -> None:
        search, read, _answer = tools.async_functions()
        assert await search(**SEARCH) == expected("search_inbox", SEARCH)
        text = await run_elsewhere(lambda: read(ID_OF_ANN))
        assert SECRET_OF_ANN in text
        many = await run_elsewhere(lambda: _gather(search(**SEARCH) for _ in range(20)))
        assert many == [expected("search_inbox", SEARCH)] * 20

    assert play(work).trajectory.record.searches == 21


def test_tools_are_called_by_name(play: Play, expected: Expected) -> None:
    async def work(tools: "EpisodeTools", _: AgentEpisode) -> None:
        wanted = expected("search_inbox", SEARCH)
        assert await asyncio.to_thread(lambda: tools.call("search_inbox", **SEARCH)) == wanted
        assert await tools.call_async("search_inbox", **SEARCH) == wanted
        assert await run_elsewhere(lambda: tools.call_async("search_inbox", **SEARCH)) == wanted
        assert await tools.call_async("search_inbox", SEARCH) == wanted
        assert await tools.call_async("search_inbox", json.dumps(SEARCH)) == wanted, "as the model wrote it"
        for text in ("[1]", "{", '"x"'):
            assert (await tools.call_async("search_inbox", text)).startswith("Error: ")
        assert (await tools.call_async("dance", name="x")).startswith("Error: ")

    assert [each.kind for each in play(work).trajectory.mistakes] == ["unknown tool"]


def test_a_function_that_would_wait_for_its_own_loop_is_refused(play: Play, expected: Expected) -> None:
    async def work(tools: "EpisodeTools", _: AgentEpisode) -> None:
        blocking_calls: list[Callable[[], str]] = [
            lambda: tools.functions()[0](**SEARCH),
            lambda: tools.call("search_inbox", **SEARCH),
        ]
        for blocking in blocking_calls:
            with raises("gateway.call-blocks-loop", "search_inbox", "async_functions", "call_async"):
                blocking()

        async def block_own_loop() -> str:
            return tools.call("search_inbox", **SEARCH)

        assert await run_elsewhere(block_own_loop) == expected("search_inbox", SEARCH)

    assert play(work).trajectory.record.searches == 1


def test_wrong_arguments_are_mistakes_of_the_model(play: Play) -> None:
    wrong: list[dict[str, Any]] = [{}, {"keywords": "gas"}, {"keywords": ["gas"], "most": 3}]

    async def work(tools: "EpisodeTools", _: AgentEpisode) -> None:
        for arguments in wrong:
            assert (await tools.async_functions()[0](**arguments)).startswith("Error: ")
        with pytest.raises(TypeError):
            await tools.async_functions()[1](ID_OF_ANN, message_id=ID_OF_ANN)
        with pytest.raises(TypeError):
            await tools.async_functions()[1](*range(99))

    assert [each.kind for each in play(work).trajectory.mistakes] == ["bad arguments"] * 3


def test_calls_that_are_used_up_and_calls_after_the_end_raise(play: Callable[..., AgentEpisode]) -> None:
    kept = list["EpisodeTools"]()

    async def work(tools: "EpisodeTools", episode: AgentEpisode) -> None:
        kept.append(tools)
        search = tools.functions()[0]
        await asyncio.to_thread(search, ["gas"])
        with pytest.raises(LimitReachedError):
            await asyncio.to_thread(search, ["gas"])
        await episode.end()
        with pytest.raises(UnknownKeyError):
            await asyncio.to_thread(search, ["gas"])

    play(work, max_tool_calls=1)
    with pytest.raises(UnknownKeyError):  # the loop of the gateway is closed
        kept[0].functions()[0](["gas"])


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_thread_does_not_wait_for_a_gateway_that_is_gone(index: MailIndex, is_cancelled: bool) -> None:
    from gumshoe.gateway.episode_tools import EpisodeTools

    begun, raised = threading.Event(), list[BaseException]()

    class Hanging:
        toolbox = EmailEnvironment(index, scenario(1), 10).toolbox

        async def call_tool(self, call: Call) -> str:
            begun.set()
            await asyncio.Event().wait()
            return call.name

    def call_it(tools: "EpisodeTools") -> None:
        try:
            tools.call("search_inbox")
        except BaseException as error:  # noqa: BLE001 - looked at below
            raised.append(error)

    async def main() -> threading.Thread:
        thread = threading.Thread(target=call_it, args=[EpisodeTools(Hanging())])
        thread.start()
        await asyncio.to_thread(begun.wait)
        return thread

    loop = asyncio.new_event_loop()
    thread = loop.run_until_complete(main())
    for task in asyncio.all_tasks(loop) if is_cancelled else ():
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    thread.join()
    assert [type(each) for each in raised] == [UnknownKeyError]


def test_an_agent_that_changes_schemas_changes_its_own(play: Play, index: MailIndex) -> None:
    before = json.dumps(EmailEnvironment(index, scenario(1), 10).toolbox.schemas())

    async def work(tools: "EpisodeTools", _: AgentEpisode) -> None:
        tools.schemas()[0]["function"]["parameters"]["properties"].clear()
        tools.langchain()[0].args_schema["properties"].clear()  # type: ignore[index]
        tools.openai_agents()[0].params_json_schema["properties"].clear()
        assert json.dumps(tools.schemas()) == before

    play(work)


# Frameworks.


def test_langchain_calls_the_tools(play: Play, expected: Expected) -> None:
    pytest.importorskip("langgraph")
    from langchain_core.messages import AIMessage
    from langchain_core.utils.function_calling import convert_to_openai_tool
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode

    calls: list[tuple[str, dict[str, Any]]] = [("search_inbox", SEARCH), ("read_email", {"message_id": "x"})]
    message = AIMessage(
        "", tool_calls=[{"name": name, "args": given, "id": str(at)} for at, (name, given) in enumerate(calls)]
    )
    wrong = AIMessage("", tool_calls=[{"name": "read_email", "args": {"message_id": 7}, "id": "1"}])

    async def work(tools: "EpisodeTools", episode: AgentEpisode) -> None:
        made = tools.langchain()
        assert [convert_to_openai_tool(each) for each in made] == tools.schemas()
        graph: Any = StateGraph(MessagesState)
        graph.add_node("tools", ToolNode(made))
        graph.add_edge(START, "tools")
        graph = graph.compile()

        wanted = [expected(*each) for each in calls]
        in_own_loop = await graph.ainvoke({"messages": [message]})
        elsewhere = await run_elsewhere(lambda: graph.ainvoke({"messages": [message]}))
        in_thread = await asyncio.to_thread(graph.invoke, {"messages": [message]})
        for found in (in_own_loop, elsewhere, in_thread):
            assert [each.content for each in found["messages"][1:]] == wanted
        refused = await graph.ainvoke({"messages": [wrong]})
        assert refused["messages"][-1].content.startswith("Error: ")
        await episode.end()
        with pytest.raises(UnknownKeyError):
            await graph.ainvoke({"messages": [message]})

    done = play(work).trajectory
    assert (done.record.searches, done.record.tool_errors) == (3, 3)
    assert [each.kind for each in done.mistakes] == ["bad arguments"]


def test_the_openai_agents_sdk_calls_the_tools(play: Play, expected: Expected) -> None:
    pytest.importorskip("agents")
    from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    class Scripted(Model):
        """Call two tools at once, and then end."""

        def __init__(self) -> None:
            self.seen, self.turns = list[Any](), 0

        async def get_response(self, *_: Any, **named: Any) -> ModelResponse:
            self.seen, self.turns = named["input"], self.turns + 1
            given = [("search_inbox", json.dumps(SEARCH)), ("read_email", '{"message_id": 7}'), ("read_email", "[]")]
            output: list[Any] = [
                ResponseFunctionToolCall(name=name, arguments=text, call_id=str(at), type="function_call")
                for at, (name, text) in enumerate(given)
            ]
            if self.turns > 1:
                text = ResponseOutputText(text="4711", type="output_text", annotations=[])
                output = [
                    ResponseOutputMessage(id="1", content=[text], role="assistant", status="completed", type="message")
                ]
            return ModelResponse(output=output, usage=Usage(), response_id=None)

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    async def work(tools: "EpisodeTools", _: AgentEpisode) -> None:
        made = tools.openai_agents()
        assert [
            {"name": each.name, "description": each.description, "parameters": each.params_json_schema} for each in made
        ] == [each["function"] for each in tools.schemas()]

        async def run_agent() -> list[str]:
            model = Scripted()
            agent = Agent(name="a", model=model, tools=list(made))
            await Runner.run(agent, "When?", run_config=RunConfig(tracing_disabled=True))
            return [each["output"] for each in model.seen if each.get("type") == "function_call_output"]

        found, wrong, broken = await run_elsewhere(run_agent)
        assert found == expected("search_inbox", SEARCH)
        assert wrong.startswith("Error: ")
        assert broken.startswith("Error: ")

    assert play(work).trajectory.record.searches == 1


@pytest.mark.parametrize(("module", "form"), [("langchain_core.tools", "langchain"), ("agents", "openai_agents")])
def test_a_framework_that_is_not_installed_is_named(
    play: Play, monkeypatch: pytest.MonkeyPatch, module: str, form: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)

    async def work(tools: "EpisodeTools", _: AgentEpisode) -> None:
        with raises("gateway.framework-missing", "gumshoe-agents[agents]") as raised:
            getattr(tools, form)()
        assert isinstance(raised.value, UsageError)

    play(work)


# Tools that are known by their schema only.


class SchemaEpisode:
    """An episode that returns its calls."""

    def __init__(self) -> None:
        self.toolbox = Toolbox([])

    async def call_tool(self, call: Call) -> str:
        return json.dumps([call.name, call.arguments])


def make_foreign(*schemas: dict[str, Any]) -> Any:
    return SimpleNamespace(schemas=lambda: list(schemas), check_names=lambda _: None)


def with_foreign(work: "Callable[[EpisodeTools], Awaitable[Any]]", *schemas: dict[str, Any]) -> None:
    from gumshoe.gateway.episode_tools import EpisodeTools

    async def main() -> None:
        await work(EpisodeTools(SchemaEpisode(), make_foreign(*schemas)))

    asyncio.run(main())


def test_foreign_tools_are_functions_with_the_arguments_of_their_schema() -> None:
    async def work(tools: "EpisodeTools") -> None:
        (function,) = tools.async_functions()
        assert (function.__name__, function.__annotations__) == (
            "look_up",
            {"word": str, "language": str | None, "most": Any, "deep": dict[str, Any] | None, "return": str},
        )
        parameters = inspect.signature(function).parameters.values()
        assert [(each.name, each.default) for each in parameters] == [
            ("word", inspect.Parameter.empty),
            ("language", None),
            ("most", None),
            ("deep", None),
        ]
        for part in ("Look a word up.", "word: The word.", "language: Its language."):
            assert part in str(function.__doc__)
        for given in (function("gas", "en"), function(word="gas", language="en", most=None)):
            assert json.loads(await given) == ["look_up", {"word": "gas", "language": "en"}]
        assert json.loads(await tools.call_async("look_up", word="gas", most=None)) == [
            "look_up",
            {"word": "gas", "most": None},
        ]
        (tool,) = tools.langchain()
        assert json.loads(await tool.ainvoke({"word": "gas"})) == ["look_up", {"word": "gas"}]

    with_foreign(work, LOOK_UP)


def test_arguments_that_are_no_names_in_python_can_be_called() -> None:
    schema = cast(dict[str, Any], json.loads(json.dumps(LOOK_UP)))
    schema["function"]["parameters"]["properties"] = {"max-results": {"type": "integer"}, "class": {}, "word": {}}

    async def work(tools: "EpisodeTools") -> None:
        given = {"max-results": 3, "class": "a", "word": "gas"}
        assert json.loads(await tools.async_functions()[0](**given)) == ["look_up", given]

    with_foreign(work, schema)


def test_arguments_that_langchain_needs_itself_are_refused() -> None:
    schema = cast(dict[str, Any], json.loads(json.dumps(LOOK_UP)))
    schema["function"]["parameters"]["properties"]["config"] = {"type": "string"}

    async def work(tools: "EpisodeTools") -> None:
        with raises("gateway.tool-not-callable", "look_up", "config"):
            tools.langchain()

    with_foreign(work, schema)
