"""Chat settings: given as an option, recorded with an adapter, and equal wherever the adapter is used."""

from pathlib import Path
from typing import Any

import pytest

from gumshoe.rollouts.chat_format.chat_settings import CHAT_SETTINGS, ChatSettings, resolve_chat_settings
from tests.errors import raises
from tests.rollouts.conversations import QWEN2_5

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
