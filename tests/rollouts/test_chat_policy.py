"""Whole episodes of chat models on an OpenAI-compatible server, with real mail indexes."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gumshoe.endpoint import openai_client
from gumshoe.environments.email import EmailEnvironment
from gumshoe.errors import UsageError
from gumshoe.inference.policy import PolicyError, Sampling
from gumshoe.inference.policy_names import TINY, PolicyName
from gumshoe.mail.index import MailIndex
from gumshoe.rewards.builtin_rewards import rubric
from gumshoe.rewards.judge_registry import open_judge
from gumshoe.rollouts.chat_answers import ApiAnswer
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.chat_model import DEFAULT_THINKING_BUDGET, ApiChatModel
from gumshoe.rollouts.chat_policy import ApiChatSession
from gumshoe.rollouts.chat_retries import RequestRetries
from gumshoe.rollouts.episode import EpisodeLimits, EpisodeStart, run_episode
from gumshoe.rollouts.episode_runners import open_policy
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from tests.errors import raises
from tests.inference.fake_chat import FakeChatModel, count_tokens
from tests.inference.fake_vllm import (
    Act,
    Exchange,
    FakeVLLM,
    RejectedError,
    altered,
    chat_turn,
    choice,
    cut_body,
    cut_json,
    held,
    raw,
    reset,
    stall,
    status,
    together,
    trickle,
)
from tests.mail.mailbox import make_index, record
from tests.scenarios.questions import scenario
from tests.waiting import Clock, async_wait_until

HOUR = 3600.0  # seconds; passes only if a test advances the clock


@pytest.fixture
def server() -> Iterator[FakeVLLM]:
    with FakeVLLM(models=("chat",)) as server:
        yield server
    assert server.errors == []


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> MailIndex:
    return make_index(tmp_path_factory.mktemp("chat"), map(record, range(1, 9)))


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


class Pauses:
    """Pauses between requests, which move the clock forward and take no time."""

    def __init__(self, clock: Clock) -> None:
        self.seconds, self._clock = list[float](), clock

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._clock.advance(seconds)
        await asyncio.sleep(0)


COOL = Sampling(0.3, 0.9, max_tokens=99)


def converse(
    server: FakeVLLM,
    index: MailIndex,
    *,
    retries: int = 1,
    model: str = "chat",
    sampling: Sampling = COOL,
    settings: ChatSettings | None = None,
    deadline: float = 100 * HOUR,
    stuck: Clock | None = None,
    pauses: Pauses | None = None,
) -> Trajectory:
    """Return one episode of a chat model, about message 3.

    Args:
        stuck: a clock to advance by hours during the second request.
    """

    async def run() -> Trajectory:
        environment = EmailEnvironment(index, scenario(3), 6)
        address = f"{server.address}/v1"
        async with openai_client(address) as client, ToolThreads() as threads:
            told = environment.system_prompt(), environment.user_prompt(), environment.toolbox.schemas()
            again = RequestRetries(retries + 1, pauses.sleep if pauses else asyncio.sleep)
            session = ApiChatSession(ApiChatModel(client, model, sampling, settings, deadline, again), *told)
            episode = run_episode(session, EpisodeStart(environment, "", EpisodeLimits(max_turns=6), threads))
            talk = asyncio.create_task(episode)
            if stuck is not None:
                await async_wait_until(lambda: len(server.requests) == 2)
                while not (talk.done() or len(server.requests) > 2):
                    stuck.advance(HOUR + 1)  # again if the client started its timer after the server had the request
                    for _ in range(100):
                        if not (talk.done() or len(server.requests) > 2):
                            await asyncio.sleep(0.01)
            return await talk

    return asyncio.run(run())


def saying(content: str | None, *calls: tuple[str, str]) -> Act:
    """Answer with a turn of this text and these calls."""
    return altered(lambda answer: answer.update(chat_turn(content, *calls)))


def test_a_chat_model_answers_with_the_tools(server: FakeVLLM, index: MailIndex) -> None:
    done = converse(server, index)
    assert (done.ending, done.turns, done.policy, done.record.answer) == ("answer", 3, "chat", "Body of message 3")
    assert done.record.searches == 1
    assert done.record.read == done.record.right_sources == ["<3@example.com>"]


def test_a_temperature_and_a_top_p_of_one_are_omitted(server: FakeVLLM, index: MailIndex) -> None:
    """Some models reject these options."""
    converse(server, index, sampling=Sampling(1.0, 1.0))
    assert server.requests
    assert all({"temperature", "top_p"}.isdisjoint(request) for request in server.requests)


def test_requests_have_the_tools_the_sampling_and_the_conversation(server: FakeVLLM, index: MailIndex) -> None:
    converse(server, index)
    for request in server.requests:
        assert (request["temperature"], request["top_p"], request["max_completion_tokens"]) == (0.3, 0.9, 99)
        names = [tool["function"]["name"] for tool in request["tools"]]
        assert names == ["search_inbox", "read_email", "return_final_answer"]
    roles = [message["role"] for message in server.requests[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]
    _, _, first, found, second, _ = server.requests[-1]["messages"]
    assert first["tool_calls"][0]["id"] == found["tool_call_id"] == "call-0-0"
    assert second["tool_calls"][0]["id"] == "call-1-0"
    assert "<3@example.com>" in found["content"]


def test_turns_of_a_chat_model_cannot_be_trained_on(server: FakeVLLM, index: MailIndex) -> None:
    done = converse(server, index)
    for each in (done, Trajectory.from_json(done.to_json(), "line 1")):
        with raises("rollouts.no-token-ids", "chat"):
            _ = each.ids
        assert (each.mask, each.sampled_tokens, each.prompt_tokens) == ([], 0, 0)
        origins = [span.origin for span in each.spans]
        assert origins == ["prompt", "sampled", "injected", "sampled", "injected", "sampled"]
        assert '"name": "search_inbox"' in each.spans[0].text, "all that it was given is on record"
        assert not any(span.logprobs for span in each.spans)
    assert done.spans[1].text == (
        '<tool_call>\n{"name": "search_inbox", "arguments": {"keywords": ["body", "3"]}}\n</tool_call>'
    )


@pytest.mark.parametrize(
    ("act", "ending"),
    [
        (saying("I would rather not."), "no call"),
        (saying(None), "no call"),
        (saying(None, ("search_inbox", "{broken")), "unparseable call"),
        (saying(None, ("search_inbox", "[1]")), "unparseable call"),
        (saying(None, ("delete_everything", "{}")), "unknown tool"),
        (saying(None, ("read_email", "")), "bad arguments"),
        (saying("\ud800 well"), "no call"),
    ],
)
def test_a_mistake_of_the_model_ends_the_episode(server: FakeVLLM, index: MailIndex, act: Act, ending: str) -> None:
    server.inject(act, after=1)
    done = converse(server, index)
    assert (done.ending, done.turns, done.record.answer, done.mistakes) == (ending, 2, None, [])
    assert done.detail
    done.to_json().encode()


def test_a_call_written_as_text_gets_a_result_as_text(server: FakeVLLM, index: MailIndex) -> None:
    """Servers without a parser of calls return them as text, without an id for the result."""
    call = {"name": "search_inbox", "arguments": {"keywords": ["body", "3"]}}
    server.inject(saying(f"Let me see.\n<tool_call>{json.dumps(call)}</tool_call>"))
    done = converse(server, index)
    assert done.ending == "answer"
    answered = server.requests[1]["messages"][-1]
    assert answered["role"] == "user"
    assert "<3@example.com>" in answered["content"]


TWO_READS = saying(
    "Both.", ("read_email", '{"message_id": "<3@example.com>"}'), ("read_email", '{"message_id": "<4@example.com>"}')
)


def test_several_calls_of_a_turn_are_run_in_order(server: FakeVLLM, index: MailIndex) -> None:
    server.inject(TWO_READS)
    done = converse(server, index)
    asked, first, second = server.requests[1]["messages"][2:]
    assert [each["id"] for each in asked["tool_calls"]] == ["call-0", "call-1"]
    assert [(each["role"], each["tool_call_id"]) for each in (first, second)] == [
        ("tool", "call-0"),
        ("tool", "call-1"),
    ]
    assert "Body of message 3" in first["content"]
    assert "Body of message 4" in second["content"]
    assert [each.origin for each in done.spans[:5]] == ["prompt", "sampled", "injected", "injected", "sampled"]
    assert [each.text for each in done.spans[2:4]] == [first["content"], second["content"]]
    assert done.spans[1].text.startswith('Both.\n<tool_call>\n{"name": "read_email"')
    assert [(each.name, each.id) for each in done.spans[1].calls] == [
        ("read_email", "call-0"),
        ("read_email", "call-1"),
    ]
    assert (done.turns, done.deeds, len(done.record.deeds)) == (2, [2, 1], 3)
    assert "parallel_tool_calls" not in server.requests[0]


def test_several_calls_are_unusable_if_the_settings_refuse_them(server: FakeVLLM, index: MailIndex) -> None:
    server.inject(TWO_READS)
    done = converse(server, index, settings=ChatSettings(parallel_calls="refuse"))
    assert (done.ending, done.turns, done.record.read) == ("unparseable call", 1, [])
    assert "2 calls" in done.detail
    assert server.requests[0]["parallel_tool_calls"] is False


def test_no_call_follows_the_final_answer(server: FakeVLLM, index: MailIndex) -> None:
    answer = ("return_final_answer", '{"answer": "Body of message 3", "message_ids": ["<3@example.com>"]}')
    read = ("read_email", '{"message_id": "<3@example.com>"}')
    server.inject(saying(None, answer, read))
    done = converse(server, index)
    assert (done.ending, done.turns, done.record.right_sources, done.record.read) == (
        "answer",
        1,
        ["<3@example.com>"],
        [],
    )


READ_TWICE = "\n".join(
    f'<tool_call>{{"name": "read_email", "arguments": {{"message_id": "<{each}@example.com>"}}}}</tool_call>'
    for each in (3, 4)
)


@pytest.mark.parametrize(
    ("act", "kind", "roles"),
    [
        (saying("I would rather not."), "no call", ["assistant", "user"]),
        (saying(None), "no call", ["user"]),
        (saying(None, ("search_inbox", "{broken")), "unparseable call", ["assistant", "tool"]),
        (saying(None, ("read_email", "[1]"), ("delete", "{}")), "unparseable call", ["assistant", "tool", "tool"]),
        (saying("<tool_call>{broken"), "unparseable call", ["assistant", "user"]),
        (saying(READ_TWICE.replace("read_email", "delete")), "unknown tool", ["assistant", "user"]),
        (saying(None, ("delete", "{}"), ("delete", "{}")), "unknown tool", ["assistant", "tool", "tool"]),
        (saying(None, ("read_email", "{}")), "bad arguments", ["assistant", "tool"]),
    ],
)
def test_a_mistake_can_be_answered(index: MailIndex, act: Act, kind: str, roles: list[str]) -> None:
    settings = ChatSettings(on_bad_call="reply", max_bad_calls=2)
    with FakeVLLM(models=("chat",), chat=FakeChatModel()) as server:
        server.inject(act)
        done = converse(server, index, settings=settings, sampling=Sampling())
        told = server.requests[1]["messages"][2:]
        assert (done.ending, done.record.answer) == ("answer", "Body of message 3")
        assert [(each.turn, each.kind) for each in done.mistakes] == [(1, kind)]
        assert [each["role"] for each in told] == roles
        answers = [each["content"] for each in told if each["role"] != "assistant"]
        assert f"Error: {done.mistakes[0].detail}" in answers[0]
        assert all(each.startswith("Error: ") for each in answers)
        assert done.spans[2].text.startswith("Error: ")
        assert done.deeds[0] == 0

        server.inject(act, times=None)
        done = converse(server, index, settings=settings, sampling=Sampling())
        assert (done.ending, done.turns, [each.turn for each in done.mistakes]) == (kind, 3, [1, 2])
    assert server.errors == []


def test_the_results_of_calls_before_a_bad_one_are_kept(server: FakeVLLM, index: MailIndex) -> None:
    calls = [("read_email", json.dumps({"message_id": f"<{each}@example.com>"})) for each in (3, 4)]
    server.inject(saying(None, calls[0], ("delete", "{}"), calls[1]))
    done = converse(server, index, settings=ChatSettings(on_bad_call="reply"))
    read, error, not_run = server.requests[1]["messages"][3:]
    assert "Body of message 3" in read["content"]
    assert error["content"] == f"Error: {done.mistakes[0].detail}"
    assert not_run["content"].startswith("Error: not run")
    assert done.deeds[0] == 1


def test_calls_in_text_get_one_message(server: FakeVLLM, index: MailIndex) -> None:
    server.inject(saying(READ_TWICE))
    done = converse(server, index)
    asked, told = server.requests[1]["messages"][2:]
    assert (asked["content"], told["role"]) == (READ_TWICE, "user")
    assert told["content"] == "\n\n".join(each.text for each in done.spans[2:4])
    assert "Body of message 3" in done.spans[2].text
    assert "Body of message 4" in done.spans[3].text


@dataclass(frozen=True)
class Score:
    """What an episode of a model should get."""

    ending: str
    turns: int
    requests: int
    reward: float
    mistakes: int = 0


FOUND = 0.1 + 0.1  # a search listed a correct source, and no id is invented
# Searched, read and answered correctly in 3 of 6 turns: correct, with its source, few sources, few turns.
RIGHT = 1 + 0.3 + 0.1 + 0.1 * 3 / 6
REFUSE, REPLY = ChatSettings(parallel_calls="refuse"), ChatSettings(on_bad_call="reply", max_bad_calls=2)
LOST = DEFAULT_THINKING_BUDGET + Sampling().max_tokens + 1


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        pytest.param(FakeChatModel(), None, Score("answer", 3, 3, RIGHT), id="plain"),
        pytest.param(FakeChatModel(parallel=True), None, Score("answer", 3, 3, RIGHT), id="calls in parallel"),
        pytest.param(FakeChatModel(parallel=True), REFUSE, Score("answer", 3, 3, RIGHT), id="parallel, refused"),
        pytest.param(
            FakeChatModel(parallel=True, rejects=("parallel_tool_calls",)),
            REFUSE,
            Score("unparseable call", 1, 2, -2.0 + 0.1),
            id="cannot be told to call once",
        ),
        pytest.param(
            FakeChatModel(rejects=("parallel_tool_calls", "chat_template_kwargs")),
            ChatSettings(parallel_calls="refuse", template_kwargs={"enable_thinking": False}),
            Score("answer", 3, 5, RIGHT),
            id="rejects parameters",
        ),
        pytest.param(FakeChatModel(thinks=20, shows="text"), None, Score("answer", 3, 3, RIGHT), id="thinks shortly"),
        pytest.param(FakeChatModel(signs=True), None, Score("answer", 3, 3, RIGHT), id="signs its calls"),
        pytest.param(
            FakeChatModel(thinks=20, signs=True),
            ChatSettings(reasoning_history="drop"),
            Score("answer", 3, 3, RIGHT),
            id="signs its calls, without reasoning",
        ),
        pytest.param(
            FakeChatModel(thinks=20, shows="reasoning_details", rejects=("reasoning_details",)),
            None,
            Score("answer", 3, 4, RIGHT),
            id="does not take its details back",
        ),
        pytest.param(FakeChatModel(thinks=2000), None, Score("answer", 3, 4, RIGHT), id="thinks at length"),
        pytest.param(
            FakeChatModel(thinks=2000, shows="reasoning"),
            None,
            Score("answer", 3, 4, RIGHT),
            id="at length, in a field",
        ),
        pytest.param(
            FakeChatModel(thinks=2000, shows="text"), None, Score("answer", 3, 4, RIGHT), id="at length, in its text"
        ),
        pytest.param(
            FakeChatModel(thinks=2000, raises_if_cut_off=True),
            None,
            Score("answer", 3, 4, RIGHT),
            id="at length, error",
        ),
        pytest.param(
            FakeChatModel(thinks=2000, shows="reasoning_content", rejects=("reasoning_content",)),
            None,
            Score("answer", 3, 5, RIGHT),
            id="does not take its reasoning back",
        ),
        pytest.param(
            FakeChatModel(thinks=2000, most_tokens=5000), None, Score("answer", 3, 6, RIGHT), id="few tokens allowed"
        ),
        pytest.param(
            FakeChatModel(thinks=2000, max_context=12_000), None, Score("answer", 3, 7, RIGHT), id="short context"
        ),
        pytest.param(
            FakeChatModel(thinks=2000), ChatSettings(thinking_budget=2000), Score("answer", 3, 3, RIGHT), id="budget"
        ),
        pytest.param(
            FakeChatModel(thinks=2000),
            ChatSettings(thinking_budget=500),
            Score("truncated", 1, 1, -1.8 + 0.1),
            id="too small a budget",
        ),
        pytest.param(FakeChatModel(thinks=LOST), None, Score("truncated", 1, 2, -1.8 + 0.1), id="thinks without end"),
        pytest.param(
            FakeChatModel(thinks=LOST), REPLY, Score("truncated", 1, 2, -1.8 + 0.1), id="without end, mistakes answered"
        ),
        pytest.param(FakeChatModel(stops_after=1), None, Score("no call", 2, 2, -1.8 + FOUND), id="stops early"),
        pytest.param(
            FakeChatModel(stops_after=1), REPLY, Score("no call", 4, 4, -1.8 + FOUND - 2 * 0.2, 2), id="stops, is told"
        ),
    ],
)
def test_models_get_the_scores_that_they_should(
    index: MailIndex, model: FakeChatModel, settings: ChatSettings | None, expected: Score
) -> None:
    with FakeVLLM(models=("chat",), chat=model) as server:
        done = converse(server, index, settings=settings, sampling=Sampling())
    done.settings = {"max_turns": 6}
    reward = asyncio.run(rubric(done, scenario(3), judge=open_judge("heuristic")))
    assert reward == pytest.approx(expected.reward)
    assert Score(done.ending, done.turns, len(server.requests), expected.reward, len(done.mistakes)) == expected
    assert server.errors == []


def test_a_reasoning_model_samples_with_its_own_temperature(
    index: MailIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeVLLM(models=("chat",), chat=FakeChatModel(rejects=("temperature", "top_p"))) as server:
        done = converse(server, index)
    assert (done.ending, len(server.requests)) == ("answer", 5)
    assert not {"temperature", "top_p"} & set(server.requests[-1])
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.count("warning: chat does not accept temperature 0.3 and samples with its own") == 1
    assert printed.count("warning: chat does not accept top_p 0.9 and samples with its own") == 1


@pytest.mark.parametrize(
    ("model", "settings", "says"),
    [
        (FakeChatModel(rejects=("parallel_tool_calls",)), REFUSE, "parallel_tool_calls false, which is left out"),
        (
            FakeChatModel(rejects=("chat_template_kwargs",)),
            ChatSettings(template_kwargs={"enable_thinking": False}),
            'chat_template_kwargs {"enable_thinking": false}, which is left out',
        ),
        (
            FakeChatModel(rejects=("reasoning",), thinks=20, shows="reasoning"),
            None,
            "reasoning in the history, which is left out",
        ),
        (FakeChatModel(rejects=("max_completion_tokens",)), None, ""),
    ],
)
def test_parameters_that_are_left_out_are_told(
    index: MailIndex, capsys: pytest.CaptureFixture[str], model: FakeChatModel, settings: ChatSettings | None, says: str
) -> None:
    with FakeVLLM(models=("chat",), chat=model) as server:
        assert converse(server, index, settings=settings, sampling=Sampling()).ending == "answer"
    printed = " ".join(capsys.readouterr().err.split())
    assert printed == (f"warning: chat does not accept {says}" if says else "")


@pytest.mark.parametrize("cuts", [True, False])
def test_a_server_that_cuts_prompts_silently_is_told(
    index: MailIndex, capsys: pytest.CaptureFixture[str], cuts: bool
) -> None:
    system = {"role": "system", "content": EmailEnvironment(index, scenario(3), 6).system_prompt()}
    room = count_tokens([system]) + 92  # for a call and its short result, and not for one more
    with FakeVLLM(models=("chat",), chat=FakeChatModel(cuts_prompts_to=room if cuts else None)) as server:
        assert [converse(server, index).ending for _ in range(2)] == ["answer"] * 2
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.count("warning: chat read") == (2 if cuts else 0), "once for each model"


def test_a_server_that_knows_only_the_old_limit_of_tokens_gets_it(index: MailIndex) -> None:
    model = FakeChatModel(rejects=("max_completion_tokens",), thinks=2000, most_tokens=5000)
    with FakeVLLM(models=("chat",), chat=model) as server:
        done = converse(server, index, sampling=Sampling(max_tokens=512))
    assert done.ending == "answer"
    assert server.requests[1]["max_tokens"] == 512
    assert server.requests[-1]["max_tokens"] <= 5000
    assert ["max_completion_tokens" in each for each in server.requests] == [True] + [False] * (
        len(server.requests) - 1
    )


EXTRA = {
    "type": "extra_forbidden",
    "loc": ["body", "parallel_tool_calls"],
    "msg": "Extra inputs are not permitted",
    "input": False,
}


@pytest.mark.parametrize(
    ("code", "body"),
    [
        pytest.param(422, {"detail": [EXTRA]}, id="FastAPI"),
        pytest.param(
            422, {"object": "error", "message": {"detail": [EXTRA]}, "type": "invalid_request_error"}, id="Mistral"
        ),
        pytest.param(
            400,
            [{"error": {"code": 400, "message": 'Unknown name "parallel_tool_calls": Cannot find field.'}}],
            id="Gemini",
        ),
        pytest.param(400, {"code": "Bad", "error": "Argument not supported: parallel_tool_calls"}, id="xAI"),
    ],
)
def test_a_rejected_parameter_is_found_in_any_form_of_error(
    server: FakeVLLM, index: MailIndex, code: int, body: Any
) -> None:
    server.inject(status(code, body))
    assert converse(server, index, settings=REFUSE).ending == "answer"
    assert ["parallel_tool_calls" in each for each in server.requests] == [True, False, False, False]


@pytest.mark.parametrize(
    "says", ["temperature must be between 0 and 2", "invalid message: the temperature of the soup"]
)
def test_an_error_about_something_else_is_reported(index: MailIndex, says: str) -> None:
    def refuse(_: dict[str, Any]) -> dict[str, Any]:
        raise RejectedError(says, param="messages")

    with FakeVLLM(models=("chat",), chat=refuse) as server, raises("models.request-failed", 400):
        converse(server, index)


def test_signatures_that_another_server_rejects_are_left_out(server: FakeVLLM, index: MailIndex) -> None:
    def sign(answer: dict[str, Any]) -> None:
        answer["choices"][0]["message"]["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "\ud800"}}

    unknown = "Invalid JSON payload received. Unknown name \"extra_content\" at 'messages[2].tool_calls[0]'"
    server.inject(altered(sign))
    server.inject(status(400, {"error": {"message": unknown, "code": 400}}))
    assert converse(server, index).ending == "answer"
    assert ["extra_content" in json.dumps(each["messages"]) for each in server.requests] == [False, True, False, False]


@pytest.mark.parametrize("shows", ["reasoning", "reasoning_content", "reasoning_details", "text"])
@pytest.mark.parametrize("kept", [True, False])
def test_reasoning_is_kept_in_the_history_or_dropped(index: MailIndex, shows: Any, kept: bool) -> None:
    settings = ChatSettings(reasoning_history="keep" if kept else "drop")
    with FakeVLLM(models=("chat",), chat=FakeChatModel(thinks=20, shows=shows)) as server:
        done = converse(server, index, settings=settings)
    turns = [each for each in server.requests[-1]["messages"] if each["role"] == "assistant"]
    assert ["delete_everything" in json.dumps(each) for each in turns] == [kept, kept]
    assert ["reasoning_details" in each for each in turns] == [kept and shows == "reasoning_details"] * 2
    sampled = [each for each in done.spans if each.origin == "sampled"]
    assert all(each.has_reasoning and "delete_everything" not in each.text for each in sampled)


PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "I know the word."}]},
    {"type": "text", "text": "Let me see."},
]


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(PARTS, id="Mistral"),
        pytest.param([{"type": "thinking", "thinking": "I know the word."}, PARTS[1]], id="Anthropic"),
        pytest.param(
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "I know the word."}]}, PARTS[1]],
            id="Databricks",
        ),
    ],
)
def test_content_may_be_a_list_of_parts(server: FakeVLLM, index: MailIndex, parts: Any, kept: bool) -> None:
    server.inject(altered(lambda answer: answer["choices"][0]["message"].update(content=parts)))
    done = converse(server, index, settings=ChatSettings(reasoning_history="keep" if kept else "drop"))
    assert done.ending == "answer"
    assert done.spans[1].text.startswith("Let me see.\n<tool_call>")
    assert [each.has_reasoning for each in done.spans if each.origin == "sampled"] == [True, False, False]
    assert server.requests[1]["messages"][2]["content"] == (parts if kept else "Let me see.")


def test_calls_may_have_no_id_and_an_object_of_arguments(server: FakeVLLM, index: MailIndex) -> None:
    def loosen(answer: dict[str, Any]) -> None:
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        call["id"], call["function"]["arguments"] = None, json.loads(call["function"]["arguments"])

    server.inject(altered(loosen), times=None)
    done = converse(server, index)
    assert (done.ending, done.record.answer) == ("answer", "Body of message 3")
    _, _, first, found, second, read = server.requests[-1]["messages"]
    assert [first["tool_calls"][0]["id"], second["tool_calls"][0]["id"]] == [
        found["tool_call_id"],
        read["tool_call_id"],
    ]
    assert found["tool_call_id"] != read["tool_call_id"]
    assert json.loads(first["tool_calls"][0]["function"]["arguments"]) == {"keywords": ["body", "3"]}


def test_hidden_reasoning_counts_as_reasoning(index: MailIndex) -> None:
    with FakeVLLM(models=("chat",), chat=FakeChatModel(thinks=20)) as server:
        done = converse(server, index)
    assert all(each.has_reasoning for each in done.spans if each.origin == "sampled")


def test_the_tokens_of_a_repeated_request_are_counted(index: MailIndex) -> None:
    used = []
    for thinks, budget in ((2000, None), (2000, 2000)):
        with FakeVLLM(models=("chat",), chat=FakeChatModel(thinks=thinks)) as server:
            done = converse(server, index, settings=ChatSettings(thinking_budget=budget), sampling=Sampling())
            used.append(done.usage)
    assert used[0] is not None
    assert used[1] is not None
    assert used[0].completion_tokens - used[1].completion_tokens == Sampling().max_tokens


def test_conversations_that_are_rejected_at_the_same_time_both_go_on(index: MailIndex) -> None:
    model = FakeChatModel(thinks=2000, most_tokens=5000, rejects=("parallel_tool_calls",))

    async def run(address: str) -> list[str]:
        async with openai_client(f"{address}/v1") as client, ToolThreads() as threads:
            shared, episodes = ApiChatModel(client, "chat", Sampling(), REFUSE), []
            for number in (3, 5):
                environment = EmailEnvironment(index, scenario(number), 6)
                told = environment.system_prompt(), environment.user_prompt(), environment.toolbox.schemas()
                session = ApiChatSession(shared, *told)
                start = EpisodeStart(environment, "", EpisodeLimits(max_turns=6), threads)
                episodes.append(run_episode(session, start))
            return [each.ending for each in await asyncio.gather(*episodes)]

    with FakeVLLM(models=("chat",), chat=model) as server:
        server.inject(together(2), times=None)
        assert asyncio.run(run(server.address)) == ["answer", "answer"]
    assert len(server.requests) == 2 * (1 + 1 + 3 + 2)
    assert server.most_at_once == 2


def test_conversations_share_what_was_learned_about_the_model(index: MailIndex) -> None:
    model = FakeChatModel(thinks=2000, rejects=("parallel_tool_calls",))

    async def run(address: str) -> list[str]:
        limits, endings = EpisodeLimits(), list[str]()
        name = PolicyName.parse(f"chat:chat@{address}/v1")
        async with open_policy(name, None, Sampling(), limits, None, REFUSE) as run, ToolThreads() as threads:
            for number in (3, 5):
                environment = EmailEnvironment(index, scenario(number), 6)
                endings.append((await run(EpisodeStart(environment, "1", limits, threads))).ending)
        return endings

    with FakeVLLM(models=("chat",), chat=model) as server:
        assert asyncio.run(run(server.address)) == ["answer", "answer"]
    assert len(server.requests) == 2 + 3 + 3
    assert [each["max_completion_tokens"] for each in server.requests] == [512] * 2 + [
        512 + DEFAULT_THINKING_BUDGET
    ] * 6


def vllm(message: str, code: int = 400) -> dict[str, Any]:
    """Return an error as vLLM and SGLang send it."""
    return {"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": code}


FULL_CONTEXTS: dict[str, Any] = {
    "OpenAI": {"error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}},
    "vLLM": {
        "error": vllm(
            "This model's maximum context length is 64 tokens. However, you requested 99 tokens in the messages, "
            "Please reduce the length of the messages."
        )
    },
    "vLLM, the prompt alone": {
        "error": vllm(
            "The decoder prompt (length 5021) is longer than the maximum model length of 4096. Make sure that "
            "`max_model_len` is no smaller than the number of text tokens."
        )
    },
    "SGLang": vllm("The input (5021 tokens) is longer than the model's context length (4096 tokens)."),
    "SGLang, with the answer": vllm(
        "Requested token count exceeds the model's maximum context length of 4096 tokens. You requested a total of "
        "4500 tokens: 3988 tokens from the input messages and 512 tokens for the completion."
    ),
    "llama.cpp": {
        "error": {
            "code": 400,
            "message": "the request exceeds the available context size, try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 5021,
            "n_ctx": 4096,
        }
    },
    "llama.cpp, later": {
        "error": {
            "code": 400,
            "message": "request (5021 tokens) exceeds the available context size (4096 tokens), try increasing it",
            "type": "exceed_context_size_error",
        }
    },
    "Anthropic": {
        "error": {
            "code": "invalid_request_error",
            "message": "prompt is too long: 208310 tokens > 200000 maximum",
            "type": "invalid_request_error",
        }
    },
    "Anthropic, with the answer": {
        "error": {
            "code": "invalid_request_error",
            "message": "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000, decrease input "
            "length or `max_tokens` and try again",
        }
    },
    "Gemini": [
        {
            "error": {
                "code": 400,
                "message": "The input token count (1055768) exceeds the maximum number of tokens allowed (1048576).",
                "status": "INVALID_ARGUMENT",
            }
        }
    ],
    "Gemini, earlier": {
        "error": {
            "code": 400,
            "message": "The input token count exceeds the maximum number of tokens allowed 1048576.",
            "status": "INVALID_ARGUMENT",
        }
    },
    "xAI": {
        "code": "Client specified an invalid argument",
        "error": "This model's maximum prompt length is 131072 but the request contains 150021 tokens.",
    },
    "TGI": {
        "error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 3988 `inputs` "
        "tokens and 512 `max_new_tokens`",
        "error_type": "validation",
    },
    "Bedrock": {"error": {"message": "Input is too long for requested model.", "type": "invalid_request_error"}},
    "DashScope": {
        "error": {
            "message": "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]",
            "type": "invalid_request_error",
            "code": "invalid_parameter_error",
        }
    },
}


@pytest.mark.parametrize("says", FULL_CONTEXTS)
def test_a_full_context_is_an_ending_not_a_failure(server: FakeVLLM, index: MailIndex, says: str) -> None:
    server.inject(status(422 if says == "TGI" else 400, FULL_CONTEXTS[says]), after=2)
    done = converse(server, index)
    assert (done.ending, done.turns) == ("context full", 2)


@pytest.mark.parametrize("fault", [reset, cut_body, status(500), status(429), status(529)])
def test_a_temporary_fault_is_retried(server: FakeVLLM, index: MailIndex, fault: Act, clock: Clock) -> None:
    server.inject(fault, after=1)
    assert converse(server, index, pauses=Pauses(clock)).ending == "answer"
    assert len(server.requests) == 4


def busy(headers: Mapping[str, str] | None = None, code: int = 429) -> Act:
    """Reject a request because there are too many."""

    def act(exchange: Exchange) -> None:
        body = b'{"error": {"message": "Rate limit reached for requests", "code": "rate_limit_exceeded"}}'
        exchange.start_reply(code, len(body), **(headers or {}))
        exchange.send(body)

    return act


def test_a_busy_server_is_asked_again_more_and_more_slowly(server: FakeVLLM, index: MailIndex, clock: Clock) -> None:
    server.inject(busy(), times=9, after=1)
    pauses = Pauses(clock)
    assert converse(server, index, retries=0, deadline=900, pauses=pauses).ending == "answer"
    assert len(server.requests) == 3 + 9
    shortest = [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert all(least <= taken <= 2 * least for least, taken in zip(shortest, pauses.seconds, strict=True))


@pytest.mark.parametrize(
    ("fault", "pause"),
    [
        (busy({"Retry-After": "7.5"}), 7.5),
        (busy({"Retry-After": "7"}, 503), 7),
        (busy({"retry-after-ms": "2500"}), 2.5),
        (busy({"Retry-After": "soon"}), 1),
    ],
)
def test_a_busy_server_decides_the_pause(
    server: FakeVLLM, index: MailIndex, clock: Clock, fault: Act, pause: float
) -> None:
    server.inject(fault)
    pauses = Pauses(clock)
    assert converse(server, index, retries=0, pauses=pauses).ending == "answer"
    assert pauses.seconds == [pytest.approx(1.5 * pause, rel=0.34)]


@pytest.mark.parametrize(
    ("fault", "fewest", "most"),
    [
        pytest.param(busy(), 10, 40, id="busy"),
        pytest.param(busy({"Retry-After": "3600"}), 1, 1, id="for an hour"),
        pytest.param(busy({"x-should-retry": "false"}), 1, 1, id="not to be asked again"),
        pytest.param(
            status(429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}),
            1,
            1,
            id="no money",
        ),
        pytest.param(
            status(429, {"error": {"message": "Your account has no balance", "type": "exceeded_current_quota_error"}}),
            1,
            1,
            id="no money of Moonshot",
        ),
        pytest.param(
            status(429, {"error": {"message": "Request too large for gpt-5 on tokens per min (TPM): Limit 30000"}}),
            1,
            1,
            id="more than a minute's tokens",
        ),
    ],
)
def test_a_server_that_is_busy_beyond_the_deadline_is_a_failure(
    server: FakeVLLM, index: MailIndex, clock: Clock, fault: Act, fewest: int, most: int
) -> None:
    server.inject(fault, times=None)
    pauses = Pauses(clock)
    with raises("models.request-failed", "chat", 429) as failed:
        converse(server, index, deadline=900, pauses=pauses)
    assert isinstance(failed.value, PolicyError)
    assert fewest <= len(server.requests) <= most
    assert sum(pauses.seconds) < 900


def test_all_conversations_of_a_model_leave_a_busy_server_alone(
    server: FakeVLLM, index: MailIndex, clock: Clock
) -> None:
    server.inject(busy({"Retry-After": "30"}))
    environment = EmailEnvironment(index, scenario(3), 6)
    messages = [{"role": "user", "content": environment.user_prompt()}]
    pauses = list[tuple[float, int]]()  # seconds, and the number of requests before

    async def run() -> None:
        async def sleep(seconds: float) -> None:
            pauses.append((seconds, len(server.requests)))
            if len(pauses) == 1:
                others.append(asyncio.create_task(ask()))
                await async_wait_until(lambda: len(pauses) > 1 or len(server.requests) > 1)
            clock.advance(seconds)

        async with openai_client(f"{server.address}/v1") as client:
            model = ApiChatModel(client, "chat", Sampling(), retries=RequestRetries(sleep=sleep))

            async def ask() -> ApiAnswer | None:
                return await model.answer(messages, environment.toolbox.schemas())

            others = list[asyncio.Task[ApiAnswer | None]]()
            assert await ask()
            assert await others[0]

    asyncio.run(run())
    assert [requests for _, requests in pauses[:2]] == [1, 1]
    assert min(seconds for seconds, _ in pauses[:2]) > 29
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        (reset, "models.unreachable", "APIConnectionError"),
        (cut_body, "models.unreachable", "APIConnectionError"),
        (cut_json, "models.invalid-answer", "JSONDecodeError"),
        (status(500), "models.request-failed", "500"),
        (status(400), "models.request-failed", "400"),
        (raw(b"<html>proxy</html>", "text/html"), "models.invalid-answer", ""),
        (raw(b"{}"), "models.invalid-answer", ""),
        (raw(b"[]"), "models.invalid-answer", ""),
        (raw(b"null"), "models.invalid-answer", ""),
        (raw(b'{"choices": []}'), "models.invalid-answer", ""),
        (raw(b'{"choices": 1}'), "models.invalid-answer", ""),
        (raw(b'{"choices": [{}]}'), "models.invalid-answer", ""),
        (raw(b'{"choices": [{"message": null}]}'), "models.invalid-answer", ""),
        (raw(b'{"choices": [{"message": {"content": 1}}]}'), "models.invalid-answer", ""),
        (raw(b'{"choices": [{"message": {"content": {"type": "text"}}}]}'), "models.invalid-answer", ""),
        (raw(b'{"choices": [{"message": {"content": [1]}}]}'), "models.invalid-answer", ""),
        (raw(b'{"choices": [{"message": {"tool_calls": [{}]}}]}'), "models.invalid-answer", ""),
        (
            raw(b'{"choices": [{"message": {"tool_calls": [{"id": "1", "function": {}}]}}]}'),
            "models.invalid-answer",
            "",
        ),
    ],
)
def test_a_missing_or_incomplete_answer_is_a_failure_of_infrastructure(
    server: FakeVLLM, index: MailIndex, fault: Act, code: str, says: str
) -> None:
    server.inject(fault, times=None, after=1)
    with raises(code, "chat", says) as failed:
        converse(server, index, retries=0)
    assert isinstance(failed.value, PolicyError)
    assert len(server.requests) == 2


BROKEN_OFF: dict[str, Act] = {
    "vLLM, SGLang": choice(finish_reason="abort"),
    "DeepSeek": choice(finish_reason="insufficient_system_resource"),
    "OpenRouter": choice(finish_reason="error", error={"code": 502, "message": "Upstream error"}),
    "OpenRouter, otherwise": choice(error={"code": 502, "message": "Network connection lost."}),
    "OpenRouter, no choice": raw(b'{"error": {"code": 502, "message": "Provider returned error"}, "user_id": "u"}'),
}


@pytest.mark.parametrize("how", BROKEN_OFF)
def test_an_answer_that_the_server_broke_off_is_not_the_model_s(
    server: FakeVLLM, index: MailIndex, clock: Clock, how: str
) -> None:
    server.inject(BROKEN_OFF[how], after=1)
    assert converse(server, index, pauses=Pauses(clock)).ending == "answer"
    assert len(server.requests) == 4, "the request alone is repeated, not the episode"
    server.inject(BROKEN_OFF[how], times=None)
    with raises("models.answer-broken-off", "chat"):
        converse(server, index, pauses=Pauses(clock))


@pytest.mark.parametrize(
    ("failure", "ending", "requests"),
    [
        ({"code": 429, "message": "Rate limit exceeded"}, "answer", 4),
        ({"code": 403, "message": "Input was flagged", "metadata": {"reasons": ["violence"]}}, "no call", 2),
        ({"code": 400, "message": "This model's maximum context length is 8192 tokens"}, "context full", 2),
    ],
)
def test_an_error_with_status_200_is_read_like_one_with_its_own(
    server: FakeVLLM, index: MailIndex, clock: Clock, failure: dict[str, Any], ending: str, requests: int
) -> None:
    server.inject(raw(json.dumps({"error": failure}).encode()), after=1)
    done = converse(server, index, retries=0, pauses=Pauses(clock))
    assert (done.ending, len(server.requests)) == (ending, requests)


@pytest.mark.parametrize(
    ("fields", "ending", "detail"),
    [
        ({"finish_reason": "content_filter"}, "no call", "content filter"),
        ({"finish_reason": "content_filter: PROHIBITED_CONTENT"}, "no call", "content filter"),
        ({"finish_reason": "function_call_filter: MALFORMED_FUNCTION_CALL"}, "unparseable call", "could not parse"),
        (
            {"finish_reason": "error", "native_finish_reason": "MALFORMED_FUNCTION_CALL"},
            "unparseable call",
            "could not parse",
        ),
    ],
)
def test_the_server_s_reason_for_an_answer_without_a_call_is_told(
    server: FakeVLLM, index: MailIndex, fields: dict[str, Any], ending: str, detail: str
) -> None:
    server.inject(choice(message={"role": "assistant", "content": None}, **fields))
    done = converse(server, index)
    assert (done.ending, len(server.requests)) == (ending, 1)
    assert detail in done.detail


FILTERED: dict[str, tuple[int, Any]] = {
    "Azure": (
        400,
        {
            "error": {
                "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management "
                "policy. Please modify your prompt and retry.",
                "type": None,
                "param": "prompt",
                "code": "content_filter",
                "status": 400,
                "innererror": {"code": "ResponsibleAIPolicyViolation"},
            }
        },
    ),
    "OpenRouter": (
        403,
        {
            "error": {
                "message": "deepinfra requires moderation. Your input was flagged",
                "code": 403,
                "metadata": {"reasons": ["violence"], "flagged_input": "Gas...", "provider_name": "DeepInfra"},
            }
        },
    ),
    "OpenRouter, a guardrail": (
        403,
        {"error": {"message": "Request blocked: prompt injection patterns detected", "code": 403}},
    ),
    "DeepSeek": (
        400,
        {"error": {"message": "Content Exists Risk", "type": "invalid_request_error", "code": "invalid_request_error"}},
    ),
    "DashScope": (
        400,
        {
            "error": {
                "code": "data_inspection_failed",
                "message": "Input data may contain inappropriate content.",
                "type": "data_inspection_failed",
            }
        },
    ),
}


@pytest.mark.parametrize("who", FILTERED)
@pytest.mark.parametrize("after", [0, 1])
def test_a_filtered_conversation_is_a_turn_of_that_model(
    server: FakeVLLM, index: MailIndex, who: str, after: int
) -> None:
    server.inject(status(*FILTERED[who]), after=after)
    done = converse(server, index)
    assert (done.ending, done.turns) == ("no call", after + 1)
    assert FILTERED[who][1]["error"]["message"] in done.detail


@pytest.mark.parametrize("written", ['<function=search_inbox>{"keywords": ["body",}</function>', None])
def test_a_call_that_the_server_cannot_parse_can_be_answered(
    server: FakeVLLM, index: MailIndex, written: str | None
) -> None:
    error = {
        "message": "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more details.",
        "type": "invalid_request_error",
        "code": "tool_use_failed",
        **({"failed_generation": written} if written else {}),
    }
    server.inject(status(400, {"error": error}))
    done = converse(server, index, settings=ChatSettings(on_bad_call="reply"))
    assert (done.ending, [each.kind for each in done.mistakes]) == ("answer", ["unparseable call"])
    assert "Failed to call a function" in done.mistakes[0].detail
    assert done.spans[1].text == (written or "")
    told = server.requests[1]["messages"][2:]
    assert [each["role"] for each in told] == (["assistant", "user"] if written else ["user"])


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_key_that_was_accepted_is_not_wrong(server: FakeVLLM, index: MailIndex, code: int) -> None:
    server.inject(status(code), after=1)
    with raises("models.request-failed", "chat", code) as failed:
        converse(server, index)
    assert isinstance(failed.value, PolicyError)


@pytest.mark.parametrize("fault", [trickle, stall])
def test_an_answer_that_does_not_end_is_given_up(server: FakeVLLM, index: MailIndex, fault: Act, clock: Clock) -> None:
    server.inject(fault, after=1)
    with raises("models.timeout", "chat", 1800):
        converse(server, index, deadline=HOUR / 2, stuck=clock)
    assert len(server.requests) == 2, "the server bills a request that is repeated"


def test_an_answer_may_take_most_of_the_deadline(server: FakeVLLM, index: MailIndex, clock: Clock) -> None:
    release = threading.Event()
    server.inject(held(release))

    async def run() -> Trajectory:
        name, limits = PolicyName.parse(f"chat:chat@{server.address}/v1"), EpisodeLimits()
        async with open_policy(name, None, Sampling(), limits) as run, ToolThreads() as threads:
            environment = EmailEnvironment(index, scenario(5), 6)
            talk = asyncio.create_task(run(EpisodeStart(environment, "1", limits, threads)))
            await async_wait_until(lambda: server.requests)
            clock.advance(850)
            for _ in range(20):
                await asyncio.sleep(0.01)  # timers that have elapsed run
            release.set()
            return await talk

    assert asyncio.run(run()).ending == "answer"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("answered", "code"),
    [(401, "models.access-denied"), (403, "models.access-denied"), (404, "models.not-found")],
)
def test_a_mistake_of_the_user_is_not_a_failure_of_infrastructure(
    server: FakeVLLM, index: MailIndex, answered: int, code: str
) -> None:
    server.inject(status(answered))
    with raises(code, "chat", answered) as refused:
        converse(server, index)
    assert isinstance(refused.value, UsageError)
    assert len(server.requests) == 1


def test_a_missing_model_is_named(server: FakeVLLM, index: MailIndex) -> None:
    with raises("models.not-found", "The model `other` does not exist"):
        converse(server, index, model="other")


def test_the_key_comes_from_the_environment(
    server: FakeVLLM, index: MailIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    converse(server, index)
    assert set(server.keys) == {"Bearer a-key"}


def test_a_malformed_key_is_refused_and_white_space_around_it_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1\nsk-2")
    with raises("models.malformed-api-key", "OPENAI_API_KEY"):
        openai_client("http://localhost/v1")
    monkeypatch.setenv("OPENAI_API_KEY", " sk-1\n")
    assert openai_client(None).api_key == "sk-1"


def test_openai_is_not_called_without_a_key() -> None:
    with raises("models.no-api-key", "OPENAI_API_KEY"):
        openai_client(None)


@pytest.mark.parametrize(
    ("word", "kind", "model", "urls"),
    [
        ("vllm:http://a:8000", "vllm", "base", ("http://a:8000",)),
        ("vllm:http://a:8000/v1#mail-3", "vllm", "mail-3", ("http://a:8000/v1",)),
        ("vllm:http://a, https://b:1#x/y", "vllm", "x/y", ("http://a", "https://b:1")),
        ("chat:gpt-4.1", "chat", "gpt-4.1", ()),
        ("chat:Qwen/Qwen3-8B@http://[::1]:8000/v1", "chat", "Qwen/Qwen3-8B", ("http://[::1]:8000/v1",)),
    ],
)
def test_a_policy_name_is_parsed(word: str, kind: str, model: str, urls: tuple[str, ...]) -> None:
    assert PolicyName.parse(word) == PolicyName(kind, model, urls)


def test_two_checkpoints_with_one_name_are_two_policies() -> None:
    words = [
        "transformers:a/model",
        "transformers:b/model",
        "transformers:a/model#1/lora",
        "transformers:a/model#2/lora",
    ]
    assert len({PolicyName.parse(word).version for word in words}) == 4
    assert PolicyName("transformers", str(TINY)).version == PolicyName.parse("tiny").version == "tiny"


@pytest.mark.parametrize(
    "word",
    [
        "",
        "vllm",
        "vllm:",
        "chat:",
        "chat:@http://a",
        "vllm:#x",
        "vllm:a:8000",
        "vllm:ftp://a",
        "vllm:http://",
        "vllm:http:///v1",
        "vllm:http://a,",
        "vllm:http://a:port",
        "vllm:http://[::1",
        "chat:m@a",
        "chat:m@http://a:port",
        "openai:gpt",
        "http://a:8000",
    ],
)
def test_an_invalid_policy_name_is_rejected(word: str) -> None:
    with raises("inference.invalid-policy", repr(word), "tiny", "vllm:URL", "chat:MODEL"):
        PolicyName.parse(word)


def test_a_named_policy_is_used(server: FakeVLLM, index: MailIndex) -> None:
    async def run() -> Trajectory:
        name, limits = PolicyName.parse(f"chat:chat@{server.address}/v1"), EpisodeLimits()
        async with open_policy(name, None, Sampling(), limits) as run, ToolThreads() as threads:
            environment = EmailEnvironment(index, scenario(5), 6)
            return await run(EpisodeStart(environment, "1", limits, threads))

    assert asyncio.run(run()).record.answer == "Body of message 5"


def test_a_token_policy_needs_a_tokenizer() -> None:
    async def run() -> None:
        async with open_policy(PolicyName.parse("vllm:http://a"), None, Sampling(), EpisodeLimits()):
            pass

    with raises("inference.tokenizer-required", "--tokenizer"):
        asyncio.run(run())


def test_a_tokenizer_s_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')

    async def run() -> None:
        async with open_policy(PolicyName.parse("vllm:http://a"), tmp_path, Sampling(), EpisodeLimits()):
            pass

    with raises("inference.tokenizer-unreadable", tmp_path):
        asyncio.run(run())
