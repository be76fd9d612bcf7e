"""The watchdog ends a process without progress, and no other."""

import os
import threading
from pathlib import Path

import pytest

from gumshoe.training.launch.watchdog import Watchdog
from tests.waiting import Clock

HOUR = 3600.0


def test_a_run_without_progress_is_ended_after_its_state_is_written(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, seen, looked, ended = tmp_path / "stalled.txt", [0], threading.Event(), threading.Event()
    statuses: list[int] = []

    def look() -> int:
        looked.set()
        return seen[-1]

    def leave(status: int) -> None:
        statuses.append(status)
        ended.set()

    def wait_for_looks() -> None:
        for _ in range(2):  # the first check may have started before the change
            looked.clear()
            looked.wait()

    monkeypatch.setattr(os, "_exit", leave)
    with Watchdog(HOUR, look, lambda: "after step 3", path):
        for _ in range(2):
            clock.advance(HOUR - 60)
            seen.append(seen[-1] + 1)
            wait_for_looks()
        assert not statuses
        clock.advance(HOUR + 60)
        ended.wait()
    assert set(statuses) == {75}
    text = path.read_text()
    first, second, *_ = text.splitlines()
    assert ("3600 seconds" in first, second) == (True, "after step 3")
    assert "Thread 0x" in text
