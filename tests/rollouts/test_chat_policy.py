"""Whole episodes of chat models on an OpenAI-compatible server, with real mail indexes."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gumshoe.endpoint import openai_client
from gumshoe.environments.email import EmailEnvironment
from gumshoe.errors import UsageError
from gumshoe.inference.policy import PolicyError, Sampling
from gumshoe.inference.policy_names import TINY, PolicyName
from gumshoe.mail.index import MailIndex
from gumshoe.rollouts.chat_policy import ApiChatSession
from gumshoe.rollouts.episode import EpisodeLimits, run_episode
from gumshoe.rollouts.sessions import open_policy
from gumshoe.rollouts.tool_threads import ToolThreads
from gumshoe.rollouts.trajectory import Trajectory
from tests.errors import raises
from tests.inference.fake_vllm import (
    Act,
    FakeVLLM,
    altered,
    chat_turn,
    cut_body,
    cut_json,
    raw,
    reset,
    stall,
    status,
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


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the OpenAI client retry without pauses."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


COOL = Sampling(0.3, 0.9, max_tokens=99)


def converse(
    server: FakeVLLM,
    index: MailIndex,
    *,
    retries: int = 1,
    model: str = "chat",
    sampling: Sampling = COOL,
    deadline: float = 100 * HOUR,
    stuck: Clock | None = None,
) -> Trajectory:
    """Return one episode of a chat model, about message 3.

    Args:
        stuck: a clock to advance by hours during the second request.
    """

    async def run() -> Trajectory:
        environment = EmailEnvironment(index, scenario(3), 6)
        address = f"{server.address}/v1"
        async with openai_client(address, timeout=HOUR, retries=retries) as client, ToolThreads() as threads:
            told = environment.system_prompt(), environment.user_prompt(), environment.toolbox.schemas()
            session = ApiChatSession(client, model, *told, sampling, deadline)
            episode = run_episode(session, environment, 0, EpisodeLimits(max_turns=6), threads)
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
        origins = [segment.origin for segment in each.segments]
        assert origins == ["prompt", "sampled", "injected", "sampled", "injected", "sampled"]
        assert '"name": "search_inbox"' in each.segments[0].text, "all that it was given is on record"
        assert not any(segment.logprobs for segment in each.segments)
    assert done.segments[1].text == (
        '<tool_call>\n{"name": "search_inbox", "arguments": {"keywords": ["body", "3"]}}\n</tool_call>'
    )


@pytest.mark.parametrize(
    ("act", "ending"),
    [
        (saying("I would rather not."), "no call"),
        (saying(None), "no call"),
        (saying(None, ("search_inbox", "{broken")), "unparseable call"),
        (saying(None, ("search_inbox", "[1]")), "unparseable call"),
        (
            saying(None, ("read_email", '{"message_id": "1"}'), ("read_email", '{"message_id": "2"}')),
            "unparseable call",
        ),
        (saying(None, ("delete_everything", "{}")), "unknown tool"),
        (saying(None, ("read_email", "")), "bad arguments"),
        (saying("\ud800 well"), "no call"),
    ],
)
def test_a_mistake_of_the_model_ends_the_episode(server: FakeVLLM, index: MailIndex, act: Act, ending: str) -> None:
    server.inject(act, after=1)
    done = converse(server, index)
    assert (done.ending, done.turns, done.record.answer) == (ending, 2, None)
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


@pytest.mark.parametrize(
    "error",
    [
        {"message": "too long", "code": "context_length_exceeded"},
        {"message": "This model's maximum context length is 64 tokens. However, you requested 99.", "code": 400},
    ],
)
def test_a_full_context_is_an_ending_not_a_failure(server: FakeVLLM, index: MailIndex, error: dict[str, Any]) -> None:
    server.inject(status(400, {"error": error}), after=2)
    done = converse(server, index)
    assert (done.ending, done.turns) == ("context full", 2)


@pytest.mark.parametrize("fault", [reset, stall, cut_body, status(500), status(429)])
@pytest.mark.usefixtures("_no_pauses")
def test_a_temporary_fault_is_retried(server: FakeVLLM, index: MailIndex, fault: Act, clock: Clock) -> None:
    server.inject(fault, after=1)
    assert converse(server, index, stuck=clock if fault is stall else None).ending == "answer"
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("fault", "code", "says"),
    [
        (reset, "models.unreachable", "APIConnectionError"),
        (stall, "models.unreachable", "APITimeoutError"),
        (cut_body, "models.unreachable", "APIConnectionError"),
        (cut_json, "models.invalid-answer", "JSONDecodeError"),
        (status(500), "models.request-failed", "500"),
        (status(429), "models.request-failed", "429"),
        (status(400), "models.request-failed", "400"),
        (raw(b"<html>proxy</html>", "text/html"), "models.invalid-answer", ""),
        (raw(b"{}"), "models.invalid-answer", ""),
        (raw(b"[]"), "models.invalid-answer", ""),
        (raw(b"null"), "models.invalid-answer", ""),
        (raw(b'{"choices": []}'), "models.invalid-answer", ""),
        (raw(b'{"choices": [{}]}'), "models.invalid-answer", ""),
        (raw(b'{"choices": [{"message": null}]}'), "models.invalid-answer", ""),
        (raw(b'{"choices": [{"message": {"content": 1}}]}'), "models.invalid-answer", ""),
        (raw(b'{"choices": [{"message": {"tool_calls": [{}]}}]}'), "models.invalid-answer", ""),
        (
            raw(b'{"choices": [{"message": {"tool_calls": [{"id": "1", "function": {}}]}}]}'),
            "models.invalid-answer",
            "",
        ),
    ],
)
def test_a_missing_or_incomplete_answer_is_a_failure_of_infrastructure(
    server: FakeVLLM, index: MailIndex, fault: Act, code: str, says: str, clock: Clock
) -> None:
    server.inject(fault, times=None, after=1)
    with raises(code, "chat", says) as failed:
        converse(server, index, retries=0, stuck=clock if fault is stall else None)
    assert isinstance(failed.value, PolicyError)
    assert len(server.requests) == 2


def test_an_endless_answer_is_given_up(server: FakeVLLM, index: MailIndex, clock: Clock) -> None:
    server.inject(trickle, after=1)
    with raises("models.timeout", "chat", 1800):
        converse(server, index, deadline=HOUR / 2, stuck=clock)


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
        async with open_policy(name, None, Sampling(), limits) as open_session, ToolThreads() as threads:
            environment = EmailEnvironment(index, scenario(5), 6)
            with open_session(environment, "1") as session:
                return await run_episode(session, environment, 0, limits, threads)

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
