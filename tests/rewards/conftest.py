"""Judges that lose no time between two tries."""

import pytest


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a judge that failed again at once."""
    monkeypatch.setattr("gumshoe.rewards.chat_judge._PAUSE", 0)
