"""The commands of `gumshoe judge`."""

import asyncio
import errno
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gumshoe.rewards.judge_registry import ExactJudge
from gumshoe.rewards.scoring import judge_trajectory
from gumshoe.rollouts.trajectory import Trajectory
from tests.conftest import CommandResult
from tests.inference import fake_vllm
from tests.inference.fake_vllm import FakeVLLM, status, together
from tests.rewards.chat_judge import by_length, late, says, shown, verdict
from tests.rewards.heuristic.test_heuristic_judge import LABELLED
from tests.rewards.test_reward import episode
from tests.scenarios.questions import question, scenario, write_questions
from tests.waiting import Clock

Run = Callable[..., CommandResult]


def of(number: int, answer: str | None, sample: int = 0, said: str = "a", **noted: Any) -> Trajectory:
    made = episode(said, sample=sample, answer=answer, **noted)
    return replace(made, scenario=scenario(number).id, ending="max turns" if answer is None else "answer")


def write(path: Path, trajectories: Iterable[Trajectory]) -> Path:
    path.write_text("".join(f"{each.to_json()}\n" for each in trajectories), encoding="utf-8")
    return path


@pytest.fixture
def questions(tmp_path: Path) -> str:
    return write_questions(tmp_path / "q.jsonl", [question(number) for number in range(1, 9)])


@pytest.fixture
def trajectories(tmp_path: Path) -> Path:
    episodes = [
        of(1, "Body of message 1"),
        of(2, "It says: body of message 2"),
        of(3, "Body of message 4"),
        of(4, "I don't know", does_not_know=True),
        of(5, None),
    ]
    return write(tmp_path / "t.jsonl", episodes)


def test_score_counts_correct_answers_and_rules(run: Run, trajectories: Path, questions: str, tmp_path: Path) -> None:
    ran = run("judge", "score", trajectories, "--scenarios", questions, "--out", tmp_path / "v.jsonl")
    assert ran.status == 0
    assert "2 of 5 correct" in ran.out
    assert "(40.0%)" in ran.out
    assert "heuristic" in ran.out
    assert "1 same text" in ran.out
    assert "1 values" in ran.out
    verdicts = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [each["correct"] for each in verdicts] == [True, True, False, False, False]
    assert verdicts[1]["rule"] == "words"
    last = {"scenario": "q5", "sample": 0, "answer": None, "correct": False, "why": "max turns", "rule": "max turns"}
    assert verdicts[4] == {**last, "is_undecided": False}
    told = json.loads(run("judge", "score", trajectories, "--scenarios", questions, "--judge", "exact", "--json").out)
    assert (told["episodes"], told["correct"], told["failed"], told["usage"]) == (5, 1, 0, {})


def test_an_unanswerable_question_is_judged_without_the_judge() -> None:
    about = scenario(1, unanswerable=True, message_ids=[], answer="I don't know")
    given = [of(1, "I don't know", does_not_know=True), of(1, "$5"), of(1, None)]
    judged = [asyncio.run(judge_trajectory(each, about, ExactJudge())) for each in given]
    assert [each.correct for each in judged] == [True, False, False]


def test_score_with_a_model_shows_its_cost_and_uses_the_cache(
    run: Run, trajectories: Path, questions: str, tmp_path: Path
) -> None:
    with FakeVLLM(chat=says(verdict)) as server:
        options = ["--judge", f"openai:base@{server.address}/v1", "--prompt-price", 3, "--completion-price", 15]
        fresh = [*options, "--no-cache"]
        options += ["--cache", tmp_path / "c.sqlite"]
        ran = run("judge", "score", trajectories, "--scenarios", questions, *options)
        assert ran.status == 0
        assert "1 of 5 correct" in ran.out
        told = json.loads(run("judge", "score", trajectories, "--scenarios", questions, *fresh, "--json").out)["usage"]
        assert (told["requests"], told["retried"], told["unusable"], told["cached"]) == (3, 0, 0, 0)
        assert (told["prompt_tokens"], told["completion_tokens"]) == (3000, 300)
        assert told["cost"] == pytest.approx(0.0135)
        for value in ("3 requests", "0 answers", "3,000 prompt", "300 completion", "$0.0135"):
            assert value in ran.out
        again = run("judge", "score", trajectories, "--scenarios", questions, *options)
        assert "0 requests" in again.out
        assert "3 answers" in again.out
        assert len(server.requests) == 6


def test_answers_without_a_verdict_are_reported(
    run: Run, clock: Clock, trajectories: Path, questions: str, tmp_path: Path
) -> None:
    def late_on_one(exchange: fake_vllm.Exchange) -> None:
        is_one = "message 4" in shown(exchange.request)["answer_to_judge"]
        (late(clock, 601) if is_one else fake_vllm.forward)(exchange)

    with FakeVLLM(chat=says(verdict)) as server:
        server.inject(late_on_one, times=None)
        options = ["--judge", f"openai:base@{server.address}/v1", "--deadline", 600, "--no-cache", "--concurrency", 1]
        ran = run("judge", "score", trajectories, "--scenarios", questions, *options, "--out", tmp_path / "v.jsonl")
    assert ran.status == 75
    assert "1 of 4 correct" in ran.out
    assert ran.code == "judges.verdicts-missing"
    assert "1 answers" in ran.err
    assert "600 seconds [judges.timeout]" in ran.err
    assert [json.loads(line)["correct"] for line in (tmp_path / "v.jsonl").read_text().splitlines()].count(None) == 1


def test_a_missing_model_is_reported_at_once(run: Run, trajectories: Path, questions: str) -> None:
    with FakeVLLM(chat=says(verdict)) as server:
        word = f"openai:nobody@{server.address}/v1"
        ran = run("judge", "score", trajectories, "--scenarios", questions, "--judge", word, "--no-cache")
    assert ran.status == 2
    assert ran.code == "models.not-found"
    assert "nobody" in ran.err
    assert "Traceback" not in ran.err


def test_score_rejects_arguments_that_do_not_belong_together(run: Run, trajectories: Path, tmp_path: Path) -> None:
    others = write_questions(tmp_path / "others.jsonl", [question(1)])
    ran = run("judge", "score", trajectories, "--scenarios", others)
    assert (ran.status, ran.code) == (2, "judges.unknown-scenario")
    for value in (trajectories, "q2", others):
        assert str(value) in ran.err
    ran = run("judge", "score", trajectories, "--scenarios", others, "--threshold", 0.5)
    assert (ran.status, ran.code) == (2, "judges.option-not-supported")
    assert "--threshold" in ran.err
    ran = run("judge", "score", trajectories, "--scenarios", others, "--judge", "wise")
    assert (ran.status, ran.code) == (2, "judges.unknown-judge")
    assert "'wise'" in ran.err
    ran = run("judge", "score", trajectories, "--scenarios", others, "--cache", "c", "--no-cache")
    assert (ran.status, ran.code) == (2, "judges.cache-conflict")


def test_results_that_cannot_be_written_are_refused_before_any_request(
    run: Run, trajectories: Path, questions: str, tmp_path: Path
) -> None:
    with FakeVLLM(chat=says(verdict)) as server:
        words: list[tuple[object, ...]] = [
            ("score", trajectories, "--scenarios", questions, "--judge", f"openai:base@{server.address}/v1"),
            ("ruler", trajectories, "--judge", f"base@{server.address}/v1"),
        ]
        for each in words:
            for place, code in (
                (tmp_path / "no" / "v.jsonl", "store.not-found"),
                (tmp_path, "store.is-a-directory"),
                (trajectories / "v.jsonl", "store.not-a-directory"),
            ):
                ran = run("judge", *each, "--no-cache", "--out", place)
                assert (ran.status != 0, ran.code) == (True, code)
    assert server.requests == []


def test_results_replace_a_file_only_as_a_whole(
    run: Run, trajectories: Path, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text("before")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    ran = run("judge", "score", trajectories, "--scenarios", questions, "--out", path)
    assert (ran.status != 0, ran.code) == (True, "store.disk-full")
    assert path.read_text() == "before"


def test_rewards_are_computed_for_each_episode_and_group(run: Run, questions: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [of(1, "Body of message 1"), of(2, "no"), of(1, "no", 1)])
    words = ["exact", "tests.rewards.own_rewards:place", "{name: turns}"]
    options = ["--scenarios", questions, *(part for word in words for part in ("--reward", word))]
    told = json.loads(run("judge", "reward", path, *options, "--json").out)
    assert [(each["scenario"], each["sample"]) for each in told["results"]] == [("q1", 0), ("q1", 1), ("q2", 0)]
    assert [list(each["rewards"].values()) for each in told["results"]] == [[1, 0, 0.9], [0, 1, 0.9], [0, 0, 0.9]]
    assert told["means"]["exact"] == pytest.approx(1 / 3)
    ran = run("judge", "reward", path, *options)
    for value in ("q1/1", "exact", "0.333", "0.900"):
        assert value in ran.out


def test_one_function_with_two_settings_has_two_names(run: Run, trajectories: Path, questions: str) -> None:
    words = [f"{{name: 'tests.rewards.own_rewards:given', arguments: {{value: {value}}}}}" for value in (1, 2)]
    ran = run(
        "judge", "reward", trajectories, "--scenarios", questions, *(f"--reward={word}" for word in words), "--json"
    )
    assert json.loads(ran.out)["means"] == {
        f"tests.rewards.own_rewards:given{each}": at for each, at in (("", 1), ("#2", 2))
    }


def test_a_reward_that_does_not_apply_has_no_value(run: Run, trajectories: Path, questions: str) -> None:
    word = "{name: 'tests.rewards.own_rewards:given', arguments: {value: .nan}}"
    ran = run("judge", "reward", trajectories, "--scenarios", questions, "--reward", word, "--json")
    assert list(json.loads(ran.out)["means"].values()) == [None]


@pytest.mark.parametrize(
    ("word", "status", "code"),
    [
        ("[exact]", 2, "rewards.invalid-name"),
        ("exakt", 2, "rewards.unknown-reward"),
        ("{name: 'tests.rewards.own_rewards:divided', arguments: {by: 0}}", 1, "rewards.failed"),
    ],
)
def test_a_wrong_reward_is_reported(
    run: Run, trajectories: Path, questions: str, word: str, status: int, code: str
) -> None:
    ran = run("judge", "reward", trajectories, "--scenarios", questions, "--reward", word)
    assert (ran.status, ran.code) == (status, code)


def groups(path: Path) -> Path:
    made = [of(number, "x", sample, "word " * 200 * sample + "end") for number in (1, 2, 3) for sample in range(3)]
    return write(path, [*made, of(4, "x")])


def test_ruler_scores_each_group(run: Run, tmp_path: Path) -> None:
    with FakeVLLM(chat=says(by_length)) as server:
        options = ["--judge", f"base@{server.address}/v1", "--no-cache", "--shuffles", 2, "--out", tmp_path / "s.jsonl"]
        ran = run("judge", "ruler", groups(tmp_path / "t.jsonl"), *options)
    assert ran.status == 0
    assert "3 groups scored, 0 dropped" in ran.out
    assert "standard deviation 0.000" in ran.out
    assert "6 requests" in ran.out
    for line in (tmp_path / "s.jsonl").read_text().splitlines():
        scores = json.loads(line)["scores"]["scores"]
        assert scores == sorted(scores, reverse=True)


def test_ruler_drops_a_group_without_scores(run: Run, tmp_path: Path) -> None:
    path = groups(tmp_path / "t.jsonl")
    with FakeVLLM(chat=lambda _: fake_vllm.chat_turn("no")) as server:
        ran = run("judge", "ruler", path, "--judge", f"base@{server.address}/v1", "--no-cache", "--json")
    assert ran.status == 75
    told = json.loads(ran.out)
    assert (told["groups"], told["dropped"], told["usage"]["failed"]) == (3, 3, 3)
    assert ran.code == "judges.groups-dropped"
    assert "3 groups" in ran.err
    assert "4 attempts" in ran.err
    assert "[judges.unusable-answer]" in ran.err


def test_ruler_accepts_a_rubric_and_needs_groups(run: Run, tmp_path: Path, trajectories: Path) -> None:
    (tmp_path / "r.txt").write_text("Only brevity counts.")
    with FakeVLLM(chat=says(by_length)) as server:
        word = f"base@{server.address}/v1"
        path = groups(tmp_path / "g.jsonl")
        assert run("judge", "ruler", path, "--judge", word, "--no-cache", "--rubric", tmp_path / "r.txt").status == 0
        assert "Only brevity counts." in server.requests[0]["messages"][0]["content"]
        ran = run("judge", "ruler", path, "--judge", word, "--rubric", tmp_path / "none.txt")
        assert (ran.status, ran.code) == (2, "judges.rubric-unreadable")
        assert str(tmp_path / "none.txt") in ran.err
        ran = run("judge", "ruler", trajectories, "--judge", word, "--no-cache")
    assert (ran.status, ran.code) == (2, "judges.no-groups")
    assert str(trajectories) in ran.err


def test_calibrate_shows_accuracy_confusion_and_mistakes(run: Run) -> None:
    ran = run("judge", "calibrate", LABELLED, "--mistakes", 1)
    assert ran.status == 0
    assert "of 300 verdicts" in ran.out
    assert "judged right" in ran.out
    assert "near miss" in ran.out
    assert "reference: " in ran.out
    told = json.loads(run("judge", "calibrate", LABELLED, "--judge", "exact", "--json").out)
    assert told["confusion"]["wrong, judged right"] == 0
    assert told["accuracy"] < 0.7
    assert told["rates"]["false acceptances"]["share"] == 0
    low, high = told["rates"]["false acceptances"]["interval"]
    assert low == pytest.approx(0, abs=1e-9)
    assert high == pytest.approx(0.025, abs=0.001)  # 1.96² / (149 + 1.96²)
    assert (told["rates"]["undecided"]["count"], told["rates"]["undecided"]["of"]) == (0, 300)


def test_calibrate_counts_what_the_judge_cannot_decide(run: Run, tmp_path: Path) -> None:
    asked = {"question": "Why did it stop?", "reference": "a blocked filter"}
    lines = [
        {**asked, "answer": "the filter was clogged", "correct": True},
        {**asked, "answer": "a blocked nozzle", "correct": False},
        {**asked, "answer": "a flood", "correct": False},
    ]
    told = json.loads(run("judge", "calibrate", write_questions(tmp_path / "l.jsonl", lines), "--json").out)
    counts = {name: (rate["count"], rate["of"]) for name, rate in told["rates"].items()}
    assert counts == {"false acceptances": (0, 2), "false refusals": (0, 1), "undecided": (2, 3)}
    assert told["accuracy"] == pytest.approx(2 / 3)


def test_calibrate_by_a_model_counts_failures(run: Run, tmp_path: Path) -> None:
    lines = [{"question": "Q?", "reference": "a", "answer": answer, "correct": answer == "a"} for answer in "abc"]
    path = write_questions(tmp_path / "l.jsonl", lines)
    with FakeVLLM(chat=says(verdict)) as server:
        server.inject(status(500), after=2, times=None)
        ran = run(
            "judge", "calibrate", path, "--judge", f"openai:base@{server.address}/v1", "--no-cache", "--concurrency", 1
        )
    assert ran.status == 75
    assert "100.0% of 2 verdicts" in ran.out
    assert ran.code == "judges.verdicts-missing"
    assert "1 answers" in ran.err
    assert "[judges.request-failed]" in ran.err


@pytest.mark.parametrize(
    ("lines", "code", "values"),
    [
        (['{"question": "Q?"}'], "judges.invalid-labelled-answer", ["l.jsonl:1: ", "reference: field required"]),
        (
            ['{"question": "Q?", "reference": "a", "answer": "a", "correct": true}', "nonsense"],
            "judges.invalid-labelled-answer",
            ["l.jsonl:2: ", "JSON"],
        ),
        ([""], "judges.no-labelled-answers", ["l.jsonl"]),
    ],
)
def test_an_invalid_file_is_reported(run: Run, tmp_path: Path, lines: list[str], code: str, values: list[str]) -> None:
    ran = run("judge", "calibrate", write_questions(tmp_path / "l.jsonl", lines))
    assert (ran.status, ran.code) == (2, code), ran.err
    for value in values:
        assert value in ran.err
    missing = run("judge", "calibrate", tmp_path / "none.jsonl")
    assert missing.status != 0
    assert str(tmp_path / "none.jsonl") in missing.err


def test_a_slow_model_gets_concurrent_requests(run: Run, tmp_path: Path) -> None:
    lines = [{"question": "Q?", "reference": "a", "answer": f"a{number}", "correct": True} for number in range(40)]
    path = write_questions(tmp_path / "l.jsonl", lines)
    with FakeVLLM(chat=says(verdict)) as server:
        server.inject(together(8), times=None)
        word = f"openai:base@{server.address}/v1"
        assert run("judge", "calibrate", path, "--judge", word, "--no-cache", "--concurrency", 8).status == 0
        assert server.most_at_once == 8
