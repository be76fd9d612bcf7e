"""Test recording of feedback and episodes: contents, redaction, privacy marks and publication."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.artifacts.store import Store
from tests.conftest import CommandResult
from tests.inference.fake_vllm import FakeVLLM
from tests.scenarios.questions import scenario
from tests.serving.agent_server import (
    ANN,
    BOB,
    DAY,
    AgentProcess,
    ServerFiles,
    add_key,
    code_of,
    question_body,
    start_server,
)
from tests.serving.in_process import make_settings, model_settings, serve_in_thread
from tests.waiting import Clock, wait_until

if TYPE_CHECKING:
    from gumshoe.serving.settings import ServeSettings


def feedback_body(**changes: Any) -> dict[str, Any]:
    """Return the body of feedback about an answer."""
    feedback = {"answer": "Body of message 7", "source_ids": ["<7@example.com>"], "right": True}
    return question_body(7) | feedback | changes


def test_nothing_is_recorded_by_default(server: AgentProcess) -> None:
    response = server.client.post("/feedback", json=feedback_body())
    assert (response.status_code, code_of(response)) == (404, "serving.feedback-disabled")


@pytest.mark.ci
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
            (feedback_body(consent="training"), True),
            (feedback_body(right=False), False),
            (feedback_body(right=False, right_answer="Body of message 9"), False),
            (
                feedback_body(
                    right=False, question="What is in 9?", right_answer="9", right_source_ids=["<9@example.com>"]
                ),
                True,
            ),
            (feedback_body(right=False, question="Why?", unanswerable=True, consent="training"), True),
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
            ({"unanswerable": True}, "serving.invalid-request", "unanswerable"),
            ({"unanswerable": True, "right": False, "right_answer": "7"}, "serving.invalid-request", "unanswerable"),
            ({"consent": "sell"}, "serving.invalid-request", "consent"),
        ):
            refused = server.client.post("/feedback", json=feedback_body(**wrong))
            assert (refused.status_code, code_of(refused)) == (422, code), refused.text
            assert value in refused.json()["detail"]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait() == 0, "the rest is published at shutdown"
    store = Store(root)
    (version,) = store.list("feedback")
    place_of = store.fetch(version.reference, tmp_path / "fetched").directory
    right, corrected, unanswerable = load_scenarios(str(place_of / "scenarios.jsonl"))
    assert (right.question, right.answer, right.message_ids) == (
        "What is in 7?", "Body of message 7", ("<7@example.com>",),
    )  # fmt: skip
    assert (corrected.answer, corrected.message_ids, corrected.split) == ("9", ("<9@example.com>",), None)
    assert (unanswerable.unanswerable, unanswerable.sources) == (True, ())
    assert [each.consent for each in (right, corrected, unanswerable)] == ["training", "none", "training"]
    assert all(each.given_at is not None for each in (right, corrected, unanswerable))
    first, second = read_trajectories(place_of / "trajectories.jsonl")
    assert right.id.startswith(f"{first.scenario}-"), "feedback and episode have the same scenario"
    assert run("scenarios", "check", place_of / "scenarios.jsonl", "--index", place.index).status == 0
    assert (first.ending, second.ending, first.policy) == ("answer", "answer", "adapter")
    assert sum(first.mask) == first.sampled_tokens > 0, "the trajectory has token IDs for training"
    confirmed, learned = tmp_path / "confirmed.jsonl", tmp_path / "learned.jsonl"
    options = ["--index", place.index, "--max-share", "1", "--out", learned, "--trajectories", confirmed]
    assert run("scenarios", "from-feedback", root, *options).status == 0
    assert len(load_scenarios(str(learned))) == 2, "one of the three has no consent"
    (demonstration,) = read_trajectories(confirmed)
    assert demonstration.mask == first.mask
    assert demonstration.scenario == f"feedback-{right.digest}"
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


PLANTED = "XQ-4711-SECRET"


def plant(kind: Any, name: str = "") -> Any:
    """Return a value of a type that contains the secret in each of its texts."""
    import dataclasses
    import types
    import typing

    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is str or kind is Any:
        return f"{name} {PLANTED} of {name}"
    if origin in (typing.Union, types.UnionType):
        return plant(next(each for each in arguments if each is not type(None)), name)
    if origin is typing.Literal:
        return arguments[0]
    if origin is dict:
        return {plant(str, "key"): plant(arguments[1], name)}
    if origin in (list, tuple):
        return origin([plant(arguments[0], name)])
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        build: Any = kind
        return build(**{each.name: plant(hints[each.name], each.name) for each in dataclasses.fields(kind)})
    return kind(7)


def find_texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and text of every text in a JSON document, including names."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield f"{path} name", key
            yield from find_texts(each, f"{path}.{key}")
    elif isinstance(value, list):
        for each in value:
            yield from find_texts(each, path)


def test_no_text_of_a_trajectory_escapes_redaction() -> None:
    """The trajectory has a secret in every field that is text, also in fields that are added later."""
    from gumshoe.rollouts.trajectory import Trajectory
    from gumshoe.serving.record_redaction import REDACTED, RecordRedactor

    planted = plant(Trajectory)
    assert planted.record.sources == [f"sources {PLANTED} of sources"]
    before = dict(find_texts(json.loads(planted.to_json())))
    assert sum(PLANTED in text for text in before.values()) > 15
    line = RecordRedactor([r"XQ-\d+-SECRET"]).write_trajectory(planted)
    assert "4711" not in line
    after = dict(find_texts(json.loads(line)))
    assert after[".record.sources"] == f"sources {REDACTED} of sources"
    read = Trajectory.from_json(line, "line 1")
    assert (read.ending, read.turns, read.record.deeds) == (planted.ending, planted.turns, planted.record.deeds)
    assert not any(each.ids or each.logprobs for each in read.spans)
    assert read.segments == []


def test_words_of_the_format_and_numbers_outside_calls_are_not_redacted() -> None:
    from gumshoe.environments.tools import Call
    from gumshoe.rollouts.trajectory import ForeignCall, Span, Trajectory
    from gumshoe.serving.record_redaction import RecordRedactor

    planted = plant(Trajectory)
    call = Call("search", {"account": 1234567890, "small": 7, "all": True, "deep": [{"pin": 4711.5}]})
    planted.spans = [Span("sampled", "text", (1, 2), (0.0, 0.0), (call,))]
    planted.foreign_calls = [ForeignCall(call, 1234.5, True, 123456)]
    planted.turns, planted.scenario = 1234567890, "asked-" + "1234567890abcdef"
    read = json.loads(RecordRedactor([r"\d{4,}", "answer|sampled|search"]).write_trajectory(planted))
    assert (read["ending"], read["turns"], read["scenario"]) == ("answer", 1234567890, "asked-1234567890abcdef")
    (span,) = read["spans"]
    assert span["origin"] == "sampled"
    (made,) = span["calls"]
    (foreign,) = read["foreign_calls"]
    assert foreign == {"call": made, "seconds": 1234.5, "is_error": True, "characters": 123456}
    assert made["name"] == "[redacted]"
    assert made["arguments"] == {
        "account": "[redacted]", "small": 7, "all": True, "deep": [{"pin": "[redacted]"}],
    }  # fmt: skip


def test_feedback_whose_sources_are_redacted_is_not_stored() -> None:
    from gumshoe.scenarios.scenario import Scenario
    from gumshoe.serving.record_redaction import RecordRedactor

    scenario = Scenario.model_validate({
        "id": "asked-0123456789abcdef-01234567", "question": "a 4711", "answer": "b 4711", "message_ids": ["<4711@x>"],
        "inbox_address": "ann4711@example.com", "query_date": DAY, "kind": "c 4711", "given_by": "0123456789abcdef",
    })  # fmt: skip
    assert RecordRedactor(["4711"]).redact_scenario(scenario) is None
    other = scenario.model_copy(update={"message_ids": ("<1@x>",)})
    found = RecordRedactor(["4711", "0123"]).redact_scenario(other)
    assert found is not None
    assert (found.id, found.given_by, found.inbox_address) == (other.id, other.given_by, "ann4711@example.com")
    assert (found.question, found.answer, found.kind) == ("a [redacted]", "b [redacted]", "c [redacted]")
    assert RecordRedactor([]).redact_scenario(scenario) == scenario
    walled = Scenario.model_validate(
        {"id": "1", "question": "hr 4711", "answer": "b", "document_ids": ["d"], "collections": ["hr"]}
    )
    kept = RecordRedactor(["hr", "4711"]).redact_scenario(walled)
    assert kept is not None
    assert (kept.question, kept.collections) == ("[redacted] [redacted]", ("hr",))


def test_feedback_names_its_caller_and_nobody_replaces_that_of_others(
    place: ServerFiles, model: FakeVLLM, tmp_path: Path
) -> None:
    from gumshoe.scenarios.sources import load_scenarios
    from gumshoe.serving.access import Principal

    file = tmp_path / "keys"
    keys = {name: add_key(file, name, [ANN]) for name in ("ann", "bob")}
    root = tmp_path / "store"
    settings = recording_settings(place, model, root, access={"keys": str(file)}, every=3600)
    with serve_in_thread(settings) as server:
        for name, answer in (("ann", "first"), ("bob", "second"), ("ann", "third")):
            body = feedback_body(answer=answer)
            given = server.client.post("/feedback", json=body, headers={"Authorization": f"Bearer {keys[name]}"})
            assert given.json() == {"kept": True}
    stored = load_scenarios(str(next(root.rglob("scenarios.jsonl"))))
    pseudonyms = {name: Principal(name, (), "key").pseudonym for name in keys}
    assert {(each.given_by, each.answer) for each in stored} == {
        (pseudonyms["ann"], "third"), (pseudonyms["bob"], "second"),
    }  # fmt: skip
    assert Principal("ann", (), "token").pseudonym != pseudonyms["ann"]
    (version,) = Store(str(root)).list("feedback")
    assert version.settings["given_by"] == dict.fromkeys(pseudonyms.values(), 1)


def test_feedback_of_one_caller_is_bounded(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    keys = {name: add_key(file, name, [ANN]) for name in ("ann", "bob")}
    access = {"keys": str(file)}
    settings = recording_settings(place, model, tmp_path / "store", access=access, feedback_per_hour=3, every=3600)

    with serve_in_thread(settings) as server:

        def give(name: str, **changes: Any) -> Any:
            named = {"Authorization": f"Bearer {keys[name]}"}
            return server.client.post("/feedback", json=feedback_body(**changes), headers=named)

        assert [give("ann", answer=str(number)).status_code for number in range(3)] == [202] * 3
        refused = give("ann")
        assert (refused.status_code, code_of(refused)) == (429, "serving.too-much-feedback")
        assert 3500 < int(refused.headers["retry-after"]) <= 3600
        assert give("ann", right=False).status_code == 202, "nothing is stored"
        assert give("bob").status_code == 202


def test_a_caller_may_give_feedback_again_after_an_hour() -> None:
    from gumshoe.serving.feedback_limit import FeedbackLimit

    now = [0.0]
    limit = FeedbackLimit(2, lambda: now[0])
    assert [limit.admit("ann") for _ in range(3)] == [0, 0, 3600]
    now[0] = 3599.5
    assert (limit.admit("ann"), limit.admit("bob")) == (1, 0)
    now[0] = 3600
    assert [limit.admit("ann") for _ in range(3)] == [0, 0, 3600]
    for number in range(5000):
        now[0] += 3600
        limit.admit(str(number))
    assert len(limit._times) <= 1001


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


def test_feedback_that_finds_no_room_is_not_said_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from gumshoe.serving import feedback_recorder
    from gumshoe.serving.settings import RecordingSettings

    monkeypatch.setattr(feedback_recorder, "_MAX_LINES", 1)
    recorder = feedback_recorder.FeedbackRecorder(RecordingSettings(), None)
    first, other = (scenario(number, given_by="a") for number in (1, 2))
    assert [recorder.record_feedback(each) for each in (first, other, first)] == [True, False, True]


def test_feedback_takes_every_answer_that_a_server_can_give() -> None:
    from gumshoe.serving.api_models import FeedbackBody

    long = {"answer": "a" * 100_000, "source_ids": [f"<{number}@example.com>" for number in range(500)]}
    assert len(FeedbackBody.model_validate(feedback_body(**long)).source_ids) == 500


@pytest.mark.parametrize(
    ("failures", "seconds", "published", "level"),
    [(0, 20.0, True, None), (2, 20.0, True, "WARNING"), (1, 0.0, False, "ERROR"), (100, 20.0, False, "ERROR")],
)
def test_the_rest_is_published_at_the_end_or_reported_as_lost(
    failures: int,
    seconds: float,
    published: bool,
    level: str | None,
    monkeypatch: pytest.MonkeyPatch,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    from gumshoe.artifacts.storage import StorageError
    from gumshoe.serving.feedback_recorder import FeedbackRecorder
    from gumshoe.serving.settings import RecordingSettings

    store, left = Store(str(tmp_path / "store")), [failures]
    publish = Store.publish

    def fail_or_publish(*given: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise StorageError("store.unavailable", "gone")
        return publish(*given, **options)

    monkeypatch.setattr(Store, "publish", fail_or_publish)
    monkeypatch.setattr(time, "sleep", clock.advance)
    with FeedbackRecorder(RecordingSettings(every=3600), store, seconds) as recorder:
        assert all(recorder.record_feedback(scenario(number, given_by="a")) for number in (1, 2))
    assert len(store.list("feedback")) == published
    assert (caplog.records[-1].levelname if caplog.records else None) == level
    assert ("2 lines of scenarios.jsonl" in caplog.text) == (not published)
    assert "later" not in caplog.text
