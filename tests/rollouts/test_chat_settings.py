"""Chat settings: given as an option, recorded with an adapter, and equal wherever the adapter is used."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gumshoe.inference.policy_names import PolicyName
from gumshoe.rollouts.chat_format.chat_settings import CHAT_SETTINGS, ChatSettings, resolve_chat_settings
from gumshoe.rollouts.sessions import open_token_policy
from gumshoe.serving.served_policies import PolicySource, open_served_policy
from gumshoe.serving.settings import ServedModelSettings
from tests.errors import raises
from tests.inference.fake_vllm import FakeVLLM, write_tokenizer
from tests.rollouts.conversations import QWEN2_5

OWN = ChatSettings(parallel_calls="refuse")
CODE = "rollouts.invalid-chat-settings"


def test_a_template_may_be_a_file_and_is_recorded_itself(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text(QWEN2_5)
    (tmp_path / "chat.yaml").write_text(f"template: {tmp_path}/own.jinja\nthinking_budget: 7\n")
    settings = ChatSettings.parse(str(tmp_path / "chat.yaml"))
    assert settings == ChatSettings(template=QWEN2_5, thinking_budget=7)
    settings.write(tmp_path)
    (tmp_path / "own.jinja").unlink()
    assert resolve_chat_settings(None, None, tmp_path / "no adapter", tmp_path) == settings
    assert resolve_chat_settings(settings, tmp_path) == settings
    with raises("rollouts.other-chat-settings", tmp_path, "template", "thinking_budget"):
        resolve_chat_settings(ChatSettings(), tmp_path)


def test_settings_of_a_policy_without_a_record_are_those_given(tmp_path: Path) -> None:
    given = ChatSettings(on_bad_call="reply")
    assert (resolve_chat_settings(given, tmp_path), resolve_chat_settings(None)) == (given, ChatSettings())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{thinking_budget: 0}", "thinking_budget"),
        ("{template: no-such-file.jinja}", "no-such-file.jinja"),
        ("{template_kwargs: {day: 2026-01-01}}", "template_kwargs.day"),
        ("{more: 1}", "more"),
        ("no-such-file.yaml", "no-such-file.yaml"),
        ("{", "--chat"),
    ],
)
def test_wrong_options_are_rejected(text: str, said: str) -> None:
    with raises(CODE, said):
        ChatSettings.parse(text)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'{"more": 1}', b'{"template": "/etc/hosts"}'])
def test_a_damaged_record_is_rejected(content: Any, tmp_path: Path) -> None:
    """A record does not make a service read other files."""
    (tmp_path / CHAT_SETTINGS).write_bytes(content)
    with raises(CODE, tmp_path / CHAT_SETTINGS):
        resolve_chat_settings(None, tmp_path)


@pytest.fixture
def trained(tmp_path: Path) -> PolicyName:
    """Return an adapter on this machine whose base model was trained with other chat settings."""
    base, adapter = write_tokenizer(tmp_path / "base"), tmp_path / "adapter"
    ChatSettings(on_bad_call="reply").write(base)
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    OWN.write(adapter)
    return PolicyName.parse(f"local:{base}#{adapter}")


def test_an_adapter_keeps_its_settings_on_a_server_with_the_tokenizer_of_its_base_model(
    trained: PolicyName, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def open_settings(server: FakeVLLM, given: ChatSettings | None) -> ChatSettings:
        @asynccontextmanager
        async def start(*_: object) -> AsyncIterator[PolicyName]:
            yield PolicyName("vllm", "adapter", (server.address,))

        monkeypatch.setattr("gumshoe.rollouts.sessions.start_local_policy", start)
        async with open_token_policy(trained, None, 4096, chat_settings=given) as opened:
            return opened.chat.settings

    with FakeVLLM() as server:
        assert [asyncio.run(open_settings(server, given)) for given in (None, OWN)] == [OWN, OWN]


def test_a_server_uses_the_settings_of_the_adapter_before_those_of_the_tokenizer(trained: PolicyName) -> None:
    async def opens(server: FakeVLLM, given: ChatSettings | None, *directories: Path) -> None:
        source = PolicySource(PolicyName("vllm", "adapter", (server.address,)), trained.base, directories)
        async with open_served_policy(source, ServedModelSettings(chat=given), 10):
            pass

    with FakeVLLM() as server:
        asyncio.run(opens(server, None, *trained.directories))
        asyncio.run(opens(server, OWN, *trained.directories))
        with raises("rollouts.other-chat-settings", trained.base):
            asyncio.run(opens(server, OWN))
