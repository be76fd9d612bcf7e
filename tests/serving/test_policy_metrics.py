"""Test the measures of each policy in service: questions, seconds, and the verdicts of callers."""

import asyncio
from pathlib import Path

import pytest

from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import ANN, ServerClient, ServerFiles, add_key, question_body
from tests.serving.in_process import (
    make_scenario,
    make_settings,
    model_settings,
    open_stub_service,
    serve_in_thread,
)
from tests.waiting import Clock, wait_until

RESULTS = ("answered", "unanswered", "failed", "cancelled")


def count_questions(server: ServerClient, policy: str) -> dict[str, float]:
    return {each: server.metric("gumshoe_questions_total", policy=policy, result=each) for each in RESULTS}


def test_questions_are_measured_by_the_policy_that_answers(place: ServerFiles, model: FakeVLLM) -> None:
    settings = model_settings(place, model.address, canary="next", canary_percent=30)
    with serve_in_thread(make_settings(place, model=settings)) as server:
        wait_until(lambda: server.metric("gumshoe_policy_available", policy="next") == 1)
        assert count_questions(server, "next") == dict.fromkeys(RESULTS, 0), "it is there at once"
        policies = [server.ask(session_id=f"s{number}").json()["policy"] for number in range(8)]
        model.inject(lambda exchange: exchange.reply({"message": "no"}, 400))
        session = f"s{policies.index('next')}"
        assert server.ask(session_id=session).status_code == 502
        share = policies.count("next")
        assert count_questions(server, "next") == {"answered": share, "unanswered": 0, "failed": 1, "cancelled": 0}
        assert count_questions(server, "adapter") == {
            "answered": 8 - share,
            "unanswered": 0,
            "failed": 0,
            "cancelled": 0,
        }
        timed = server.metric("gumshoe_answer_seconds_count", policy="next")
        assert timed == share, "a failure that comes early is not a quick answer"
        assert server.metric("gumshoe_feedback_per_caller") == 0, "it takes no feedback"
        model.models = ("base", "adapter")
        wait_until(lambda: server.metric("gumshoe_policy_available", policy="next") == 0)
    model.models = ("base", "adapter", "next")


def test_one_caller_cannot_decide_about_a_policy(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    keys = {name: add_key(file, name, [ANN]) for name in ("ann", "bob")}
    settings = make_settings(
        place,
        model=model_settings(place, model.address),
        access={"keys": str(file)},
        store=(tmp_path / "store").as_uri(),
        keeping={"feedback": True, "verdicts_per_caller": 2, "every": 3600},
    )
    with serve_in_thread(settings) as server:

        def judge(name: str, number: int, **changes: object) -> None:
            body = {"answer": "Body", "source_ids": ["<7@example.com>"], "policy": "adapter", "right": False, **changes}
            headers = {"Authorization": f"Bearer {keys[name]}"}
            answer = server.client.post("/feedback", json=question_body(number, **body), headers=headers)
            assert answer.status_code == 202, answer.text

        judge("ann", 1)
        judge("ann", 1, right=True)  # repeated
        judge("ann", 2, right_answer="Body of message 2")
        judge("ann", 3)  # too many
        judge("bob", 1, right=True)
        judge("bob", 2, policy="forged")
        judge("bob", 3, policy=None)
        verdicts = ("right", "corrected", "wrong", "unanswerable")
        counted = {each: server.metric("gumshoe_feedback_total", policy="adapter", verdict=each) for each in verdicts}
        assert counted == {"right": 1, "corrected": 1, "wrong": 1, "unanswerable": 0}
        reasons = ("repeated", "too many", "other policy", "no policy")
        assert [server.metric("gumshoe_feedback_uncounted_total", why=each) for each in reasons] == [1, 1, 1, 1]
        assert "forged" not in server.client.get("/metrics").text, "callers cannot add label values"
        assert server.metric("gumshoe_feedback_per_caller") == 2


def test_verdicts_count_again_after_a_day_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from gumshoe.serving import feedback_limit

    monkeypatch.setattr(feedback_limit, "_MOST_CALLERS", 3)
    now = [0.0]
    limit = feedback_limit.VerdictLimit(1, lambda: now[0])
    assert [limit.admit("ann", "r1", each) for each in ("q1", "q1", "q2")] == ["", "repeated", "too many"]
    assert limit.admit("ann", "r2", "q1") == "", "each policy has its own limit, and its own answer to the question"
    assert [limit.admit(each, "r1", "q") for each in ("bob", "cat", "dan")] == ["", "", "too many"]
    now[0] = feedback_limit.VERDICT_PERIOD
    assert [limit.admit("dan", "r1", each) for each in ("q1", "q1")] == ["", "repeated"]
    assert len(limit._counted) == 1


@pytest.mark.parametrize("result", ["cancelled", "failed"])
def test_questions_that_end_without_a_result_are_counted(place: ServerFiles, clock: Clock, result: str) -> None:
    """They are those of a client that gives up, whose time counts, and those in which the environment has a defect."""
    from gumshoe.rollouts.episode import EpisodeStart
    from gumshoe.rollouts.trajectory import Trajectory

    is_running = asyncio.Event()

    async def run(start: EpisodeStart) -> Trajectory:  # noqa: ARG001
        if result == "failed":
            raise RuntimeError("a defect")
        is_running.set()
        return await asyncio.Future()

    async def ask() -> None:
        async with open_stub_service(make_settings(place), run) as service:
            work = asyncio.create_task(service.answer(make_scenario(), None, lambda _: None, "ann"))
            if result == "cancelled":
                await is_running.wait()
                clock.advance(20)
                work.cancel()
            with pytest.raises((RuntimeError, asyncio.CancelledError)):
                await work

        def value(name: str, **labels: str) -> float | None:
            return service.metrics.registry.get_sample_value(f"gumshoe_{name}", {"policy": "stub", **labels})

        assert {each: value("questions_total", result=each) for each in RESULTS} == {
            each: float(each == result) for each in RESULTS
        }
        timed = result == "cancelled"
        assert (value("answer_seconds_bucket", le="18.0"), value("answer_seconds_bucket", le="25.0")) == (0, timed)

    asyncio.run(ask())
