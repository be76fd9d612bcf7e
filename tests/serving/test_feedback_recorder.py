"""Test recording of feedback and episodes: contents, redaction, privacy marks and publication."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.artifacts.store import Store
from tests.conftest import CommandResult
from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import (
    ANN,
    BOB,
    AgentProcess,
    ServerFiles,
    add_key,
    code_of,
    question_body,
    start_server,
)
from tests.serving.in_process import make_settings, model_settings, serve_in_thread
from tests.waiting import wait_until

if TYPE_CHECKING:
    from gumshoe.serving.settings import ServeSettings


def feedback_body(**changes: Any) -> dict[str, Any]:
    """Return the body of feedback about an answer."""
    feedback = {"answer": "Body of message 7", "source_ids": ["<7@example.com>"], "right": True}
    return question_body(7) | feedback | changes


def test_nothing_is_recorded_by_default(server: AgentProcess) -> None:
    response = server.client.post("/feedback", json=feedback_body())
    assert (response.status_code, code_of(response)) == (404, "serving.feedback-disabled")


def test_feedback_becomes_scenarios_and_episodes_become_trajectories(
    place: ServerFiles, model: FakeVLLM, s3_bucket: str, tmp_path: Path, run: Callable[..., CommandResult]
) -> None:
    from gumshoe.rollouts.writer import read_trajectories
    from gumshoe.scenarios.sources import load_scenarios

    root = f"s3://{s3_bucket}/kept"
    keeping = ["--store", root, "--set", "keeping.feedback=true", "--set", "keeping.trajectories=1"]
    with start_server(place, f"vllm:{model.address}#adapter", tmp_path / "log", "--open", *keeping) as server:
        assert server.ask().is_success
        assert server.ask(8, inbox_address=BOB).is_success
        for judged, kept in (
            (feedback_body(source_ids=["<8@example.com>"]), True),  # replaced by the next one
            (feedback_body(), True),
            (feedback_body(right=False), False),
            (feedback_body(right=False, right_answer="Body of message 9"), False),
            (
                feedback_body(
                    right=False, question="What is in 9?", right_answer="9", right_source_ids=["<9@example.com>"]
                ),
                True,
            ),
        ):
            response = server.client.post("/feedback", json=judged)
            assert (response.status_code, response.json()) == (202, {"kept": kept})
        for wrong, code, value in (
            ({"query_date": None}, "serving.query-date-missing", "query_date: "),
            ({"answer": " \n"}, "serving.invalid-answer", "answer: "),
            ({"source_ids": [" "]}, "serving.invalid-answer", "message_ids.0: "),
            ({"source_ids": ["<1000@example.com>"]}, "serving.source-not-found", "'<1000@example.com>'"),
            ({"source_ids": ["<99@example.com>"]}, "serving.source-not-found", "'<99@example.com>'"),
            ({"query_date": "2001-05-01"}, "serving.source-not-found", "'<7@example.com>'"),
        ):
            refused = server.client.post("/feedback", json=feedback_body(**wrong))
            assert (refused.status_code, code_of(refused)) == (422, code), refused.text
            assert value in refused.json()["detail"]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait() == 0, "the rest is published at shutdown"
    store = Store(root)
    (version,) = store.list("feedback")
    place_of = store.fetch(version.reference, tmp_path / "fetched").directory
    right, corrected = load_scenarios(str(place_of / "scenarios.jsonl"))
    assert (right.question, right.answer, right.message_ids) == (
        "What is in 7?", "Body of message 7", ("<7@example.com>",),
    )  # fmt: skip
    assert (corrected.answer, corrected.message_ids, corrected.split) == ("9", ("<9@example.com>",), None)
    first, second = read_trajectories(place_of / "trajectories.jsonl")
    assert right.id.startswith(f"{first.scenario}-"), "feedback and episode have the same scenario"
    assert run("scenarios", "check", place_of / "scenarios.jsonl", "--index", place.index).status == 0
    assert (first.ending, second.ending, first.policy) == ("answer", "answer", "adapter")
    assert sum(first.mask) == first.sampled_tokens > 0, "the trajectory has token IDs for training"
    forgotten = run("artifacts", "forget", "--store", root, "--inbox", BOB, "--json")
    assert any("feedback" in each for each in json.loads(forgotten.out)["removed"])


def recording_settings(
    place: ServerFiles, model: FakeVLLM, store: Path, *, access: Any = None, **keeping: Any
) -> "ServeSettings":
    """Return the settings of a server that records feedback and publishes it quickly."""
    recording = {"feedback": True, "every": 0.05, **keeping}
    given = {"store": str(store), "keeping": recording, "model": model_settings(place, model.address)}
    return make_settings(place, **given, **({"access": access} if access else {}))


def test_redacted_text_is_not_recorded(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    from gumshoe.rollouts.writer import read_trajectories

    root = tmp_path / "store"
    with serve_in_thread(recording_settings(place, model, root, trajectories=1, redact=[r"message \d+"])) as server:
        assert server.ask().is_success
        assert server.client.post("/feedback", json=feedback_body()).is_success
        wait_until(lambda: any(root.rglob("trajectories.jsonl")) and any(root.rglob("scenarios.jsonl")))
    text = "".join(path.read_text() for path in root.rglob("*.jsonl"))
    assert "Body of [redacted]" in text
    assert "message 7" not in text
    trajectories = [each for path in root.rglob("trajectories.jsonl") for each in read_trajectories(path)]
    assert trajectories
    assert not any(span.ids for each in trajectories for span in each.spans)


def test_feedback_about_a_forbidden_inbox_is_refused(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "bob", [BOB])
    access = {"keys": str(tmp_path / "keys")}
    with serve_in_thread(recording_settings(place, model, tmp_path / "store", access=access), key=key) as server:
        refused = server.client.post("/feedback", json=feedback_body(inbox_address=ANN))
        assert (refused.status_code, code_of(refused)) == (403, "serving.inbox-forbidden")


def test_records_survive_a_failing_store(
    place: ServerFiles, model: FakeVLLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from gumshoe.scenarios.sources import load_scenarios

    root = tmp_path / "store"
    root.write_text("no directory")
    with serve_in_thread(recording_settings(place, model, root)) as server:
        assert server.client.post("/feedback", json=feedback_body()).is_success
        wait_until(lambda: "[store.not-a-directory]" in caplog.text)
        root.unlink()
        wait_until(lambda: root.is_dir() and len(Store(str(root)).list("feedback")) == 1)
    assert len(load_scenarios(str(next(root.rglob("scenarios.jsonl"))))) == 1


def test_the_index_is_fetched_from_the_store_and_verified(
    place: ServerFiles, model: FakeVLLM, tmp_path: Path, run: Callable[..., CommandResult]
) -> None:
    store = Store(str(tmp_path / "store"))
    store.publish(place.index, "mail-indexes", "one")
    fetched = ServerFiles(Path("mail-indexes/latest"), place.tokenizer)
    policy = f"vllm:{model.address}#adapter"
    with start_server(fetched, policy, tmp_path / "log", "--open", "--store", store.uri) as server:
        assert server.ask().json()["answer"] == "Body of message 7"
    local = store.fetch("mail-indexes/one", tmp_path / "index").directory
    with (local / "segment-1" / "messages.sqlite").open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    ran = run("serve", "--index", local, "--policy", "chat:x", "--open", "--port", 0)
    assert (ran.status, ran.code) == (1, "artifacts.damaged-directory"), ran.err
    assert "messages.sqlite" in ran.err
