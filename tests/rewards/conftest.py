"""Fixtures for judges."""

import pytest


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry judges without pauses."""
    monkeypatch.setattr("gumshoe.rewards.chat_judge._MAX_PAUSE", 0)
