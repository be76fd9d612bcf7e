"""The agent server takes the same steps for a message of another inbox as for one that does not exist."""

from pathlib import Path

import apsw
import pytest

from gumshoe.artifacts import sqlite
from gumshoe.artifacts.sqlite import open_read_only
from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import ANN, DAY, ServerFiles
from tests.serving.in_process import make_settings, model_settings, serve_in_thread

REQUESTS = 5  # each of the server's threads opens the index once, which takes steps too


def test_a_source_of_another_inbox_takes_the_steps_of_a_missing_one(
    place: ServerFiles, model: FakeVLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare Eve's message with an id that nobody has. `tests.mail.test_equal_work` does so for all that tools do."""
    steps = 0

    def count_step() -> bool:
        nonlocal steps
        steps += 1
        return False

    def open_counted(path: Path) -> apsw.Connection:
        database = open_read_only(path)
        database.set_progress_handler(count_step, 1)
        return database

    monkeypatch.setattr(sqlite, "open_read_only", open_counted)
    with serve_in_thread(make_settings(place, model=model_settings(place, model.address))) as server:

        def read(name: str) -> tuple[int, str, int]:
            """Return status and body of the answer, and the fewest steps of several requests."""
            counts = []
            for _ in range(REQUESTS):
                before = steps
                body = {"source_id": name, "inbox_address": ANN, "query_date": DAY}
                response = server.client.post("/source", json=body)
                counts.append(steps - before)
            return response.status_code, response.json().get("title", ""), min(counts)

        read("<97@example.com>")
        assert read("<99@example.com>") == read("<98@example.com>") != read("<7@example.com>")
        assert read("<98@example.com>")[0] == 404
    assert steps > 0
