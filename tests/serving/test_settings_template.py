"""Test `gumshoe serve --print-config`: all settings, with or without those that a server requires."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gumshoe.serving.settings import ServeSettings
from gumshoe.serving.settings_template import render_settings
from tests.conftest import CommandResult
from tests.errors import raises


@pytest.fixture(autouse=True)
def _without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GUMSHOE_INDEX", raising=False)
    monkeypatch.delenv("GUMSHOE_STORE", raising=False)


def test_all_settings_are_printed_without_any_value(run: Callable[..., CommandResult]) -> None:
    ran = run("serve", "--print-config")
    assert ran.status == 0, ran.err
    printed = yaml.safe_load(ran.out)
    assert list(printed) == list(ServeSettings.model_fields)
    assert (printed["index"], printed["access"]["open"], printed["limits"]["queue"]) == (None, False, 128)
    assert all("  # " in line for line in ran.out.splitlines())


def test_given_settings_are_printed_and_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUMSHOE_SERVE__LIMITS__QUEUE", "7")
    flags = {"index": "mailbox", "access": {"keys": "keys.yaml"}, "environment": {"documents": {"reasoning": False}}}
    text = render_settings(None, flags)
    printed = yaml.safe_load(text)
    assert (printed["index"], printed["access"]["keys"], printed["limits"]["queue"]) == ("mailbox", "keys.yaml", 7)
    (tmp_path / "serve.yaml").write_text(text)
    assert render_settings(tmp_path / "serve.yaml", {}) == text


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ({"limits": {"queue": -1}}, "limits.queue"),
        ({"access": {"jwks_url": "https://login.example/keys"}}, "access.issuer"),
        ({"nothing": 1}, "nothing"),
        ({"limits": {"deadline": math.inf}}, "limits.deadline"),
    ],
)
def test_invalid_settings_are_refused(flags: dict[str, Any], value: str) -> None:
    with raises("serving.invalid-settings", value):
        render_settings(None, flags)
