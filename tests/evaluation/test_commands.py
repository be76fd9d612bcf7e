"""`gumshoe evaluate`, `compare` and `gate`, as they are typed, against real servers and a real index."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.private import MARK
from gumshoe.cli import main
from gumshoe.evaluation.predictions import read_predictions
from gumshoe.evaluation.results import EvaluationResult, read_result
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.scenarios.sources import load_scenarios
from tests.agent.fake_vllm import FakeVLLM, choice, raw, reset, status
from tests.conftest import Ran, free_port
from tests.evaluation.conftest import QUESTIONS, Place, wrong_about
from tests.mail.mailbox import make_index, record
from tests.rewards.chat_judge import late, says, verdict
from tests.waiting import Clock

Run = Callable[..., Ran]


def options(place: Place, out: Path, *policies: str, **changes: object) -> list[object]:
    """The arguments of an evaluation; a list gives an option several times, `None` leaves it out."""
    given: dict[str, object] = {
        "index": place.index,
        "scenarios": place.scenarios,
        "policy": list(policies),
        "out": out,
        "max-context": 50_000,
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    found: list[object] = ["evaluate"]
    for name, value in given.items():
        for each in value if isinstance(value, list) else [] if value is None else [value]:
            found += [f"--{name}"] if each is True else [f"--{name}", each]
    return found


def chats(server: FakeVLLM) -> tuple[str, str]:
    """Two policies: the baseline, which errs, and one that does not."""
    return f"old=chat:base@{server.address}/v1", f"new=chat:adapter@{server.address}/v1"


def test_two_policies_are_measured_compared_and_written_down(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    ran = run(*options(place, tmp_path / "e", *chats(server), price=["1/10", "new=2/20"]))
    assert ran.status == 0, ran.err
    assert "new against old: +33.3% correct" in ran.out
    assert "4 won, 0 lost, 8 as before" in ran.out
    found = EvaluationResult.model_validate_json((tmp_path / "e" / "metrics.json").read_bytes())
    old, new = found.policies
    assert [each.metrics["accuracy"].value for each in (old, new)] == pytest.approx([8 / 12, 1])
    assert old.metrics["hallucinated_sources"].value == pytest.approx(4 / 12)
    assert old.metrics["source_accuracy"].value == pytest.approx(8 / 12)
    assert old.metrics["cost_per_1000"].value == pytest.approx((1500 * 1 + 150 * 10) / 1000)
    assert new.metrics["cost_per_1000"].value == pytest.approx((1500 * 2 + 150 * 20) / 1000)
    assert set(new.control_reward_map) == {f"q{number}" for number in range(1, QUESTIONS + 1)}
    assert found.comparisons[0].gained == ("q2", "q3", "q5", "q7")
    assert found.is_whole
    assert found.scenarios.content == load_scenarios(str(place.scenarios)).only("test").content
    assert {each.policy for each in read_predictions(tmp_path / "e" / "predictions.jsonl")} == {"old", "new"}
    with (tmp_path / "e" / "predictions.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == QUESTIONS
    assert [row["old: correct"] for row in rows].count("1") == 8
    assert rows[1]["old: answer"] == "Nobody knows what it said"
    assert (tmp_path / "e" / "report.html").stat().st_size > 10_000


def test_nothing_that_was_answered_is_asked_again_and_another_policy_can_be_added(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    old, new = chats(server)
    assert run(*options(place, tmp_path / "e", old)).status == 0
    asked = len(server.requests)
    assert asked == 3 * QUESTIONS
    first = (tmp_path / "e" / "metrics.json").read_bytes()
    assert run(*options(place, tmp_path / "e", old)).status == 0
    assert len(server.requests) == asked
    assert (tmp_path / "e" / "metrics.json").read_bytes() == first
    assert run(*options(place, tmp_path / "e", old, new)).status == 0
    assert {each["model"] for each in server.requests[asked:]} == {"adapter"}


def test_a_second_judge_needs_no_policy_that_is_gone(run: Run, place: Place, server: FakeVLLM, tmp_path: Path) -> None:
    given: dict[str, Any] = {"tokenizer": place.tokenizer, "max_tokens": 400}
    assert run(*options(place, tmp_path / "e", f"a=vllm:{server.address}#adapter", **given)).status == 0
    gone = f"a=vllm:http://127.0.0.1:{free_port()}#adapter"
    ran = run(*options(place, tmp_path / "e", gone, **given, judge=["heuristic", "exact"]))
    assert ran.status == 0, ran.err
    assert read_result(str(tmp_path / "e"))[1].agreement is not None


def test_a_token_policy_can_be_added_to_chat_models(run: Run, place: Place, server: FakeVLLM, tmp_path: Path) -> None:
    old, _ = chats(server)
    assert run(*options(place, tmp_path / "e", old, max_tokens=400)).status == 0
    given: dict[str, Any] = {"tokenizer": place.tokenizer, "max_tokens": 400}
    ran = run(*options(place, tmp_path / "e", old, f"a=vllm:{server.address}#adapter", **given))
    assert ran.status == 0, ran.err
    other = run(*options(place, tmp_path / "e", f"a=vllm:{server.address}#adapter", **given | {"tokenizer": "another"}))
    assert "other tokenizer of a" in other.err


def test_an_adapter_that_took_the_place_of_another_is_not_taken_for_it(run: Run, place: Place, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"old")
    policy = f"a=transformers:{tmp_path / 'nothing'}#{adapter}"
    assert "there is no" in run(*options(place, tmp_path / "e", policy)).err
    assert "there is no" in run(*options(place, tmp_path / "e", policy)).err
    (adapter / "adapter_model.safetensors").write_bytes(b"new")
    assert "other weights of a" in run(*options(place, tmp_path / "e", policy)).err


def test_other_questions_or_settings_in_the_same_directory_are_refused(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    old, _ = chats(server)
    assert run(*options(place, tmp_path / "e", old)).status == 0
    asked = len(server.requests)
    for changes, said in (
        ({"split": "train"}, "other scenarios"),
        ({"limit": 3}, "other scenarios"),
        ({"max_turns": 4}, "other max_turns"),
        ({"samples": 2}, "other samples and temperature"),
    ):
        ran = run(*options(place, tmp_path / "e", old, **changes))
        assert ran.status == 2
        assert f"holds an evaluation with {said}" in ran.err
    assert len(server.requests) == asked


def test_another_index_or_model_under_the_same_name_is_refused(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    old, _ = chats(server)
    assert run(*options(place, tmp_path / "e", old)).status == 0
    asked = len(server.requests)
    other = make_index(tmp_path / "mail", map(record, range(1, 26))).path.parent
    ran = run(*options(place, tmp_path / "e", old, index=other))
    assert (ran.status, "other index" in ran.err) == (2, True)
    ran = run(*options(place, tmp_path / "e", f"old=chat:adapter@{server.address}/v1"))
    assert (ran.status, "other policy old" in ran.err) == (2, True)
    assert len(server.requests) == asked
    assert (tmp_path / "e" / "metrics.json").exists()


def test_an_evaluation_that_ends_without_numbers_leaves_no_old_ones(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    old, new = chats(server)
    assert run(*options(place, tmp_path / "e", old)).status == 0
    server.inject(status(400), times=None)
    assert run(*options(place, tmp_path / "e", old, new)).status == 75
    assert {each.name for each in (tmp_path / "e").iterdir()} == {"evaluation.json", MARK, "trajectories"}


def test_a_server_that_fails_costs_no_question_and_gives_no_number(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    old, new = chats(server)
    for after, act in enumerate((reset, status(500), status(429), raw(b"no JSON"), choice(message=None))):
        server.inject(act, after=3 + 5 * after)
    ran = run(*options(place, tmp_path / "a", old))
    assert ran.status == 0, ran.err
    assert len(server.requests) >= 3 * QUESTIONS + 5
    assert "66.7%" in ran.out
    server.inject(status(400), times=None)  # it is not sent again by the client, as 500 is
    ran = run(*options(place, tmp_path / "b", old, new))
    assert ran.status == 75
    assert f"old has no answer to {QUESTIONS} questions" in ran.err
    assert "run this again for them" in ran.err
    assert not (tmp_path / "b" / "metrics.json").exists()


def test_a_judge_that_fails_leaves_no_verdict_out_and_what_was_answered_is_kept(
    run: Run, place: Place, server: FakeVLLM, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    old, _ = chats(server)
    with FakeVLLM(chat=says(verdict)) as judge:
        named = f"{{openai: {{model: base, url: '{judge.address}/v1', cache: null, concurrency: 1, deadline: 60}}}}"
        judge.inject(late(clock, 61), times=None)
        ran = run(*options(place, tmp_path / "e", old, judge=named))
        assert ran.status == 75
        assert "have no verdict of openai:base" in ran.err
        assert not (tmp_path / "e" / "metrics.json").exists()
    asked = len(server.requests)
    with FakeVLLM(chat=says(lambda _: "As I see it, it is fine.")) as judge:
        named = f"{{openai: {{model: base, url: '{judge.address}/v1', cache: null}}}}"
        assert run(*options(place, tmp_path / "e", old, judge=named)).status == 75
    with FakeVLLM(chat=says(verdict)) as judge:
        named = f"{{openai: {{model: base, url: '{judge.address}/v1', cache: null, prompt_price: 2}}}}"
        ran = run(*options(place, tmp_path / "e", old, judge=named))
        assert ran.status == 0, ran.err
    assert len(server.requests) == asked
    result, _ = read_result(str(tmp_path / "e"))
    assert result.judges[0].usage["requests"] == QUESTIONS
    assert result.judges[0].usage["cost"] == pytest.approx(QUESTIONS * 1000 * 2 / 1e6)


def test_two_judges_are_compared(run: Run, place: Place, server: FakeVLLM, tmp_path: Path) -> None:
    server.chat = lambda request: (
        turn
        if "return_final_answer" not in json.dumps(turn := wrong_about()(request))
        else json.loads(json.dumps(turn).replace("Body of message 4", "It says: body of message 4"))
    )
    ran = run(*options(place, tmp_path / "e", chats(server)[0], judge=["heuristic", "exact"]))
    assert ran.status == 0, ran.err
    assert "heuristic and exact agree on 11 of 12 answers, Cohen's kappa 0.00" in ran.out
    _, policy = read_result(str(tmp_path / "e"))
    assert policy.agreement is not None
    assert policy.agreement.disagreements == ("q4/0",)
    assert policy.metrics["accuracy"].value == 1
    twice = run(*options(place, tmp_path / "f", chats(server)[0], judge=["exact", "exact", "exact"]))
    assert twice.status == 2
    assert "3 judges were named" in twice.err


def test_token_policies_are_run_greedily_unless_told_and_several_samples_give_pass_at_k(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    policy = f"vllm:{server.address}#adapter"
    given: dict[str, Any] = {"tokenizer": place.tokenizer, "max_tokens": 400}
    ran = run(*options(place, tmp_path / "e", policy, **given))
    assert ran.status == 0, ran.err
    assert {each["temperature"] for each in server.requests} == {0}
    result, found = read_result(str(tmp_path / "e"))
    assert found.name == "adapter"
    assert found.metrics["accuracy"].value == 1
    assert found.metrics["prompt_tokens"].value > found.metrics["sampled_tokens"].value > 0
    ran = run(*options(place, tmp_path / "s", policy, **given, samples=3, limit=2))
    assert ran.status == 0, ran.err
    result, found = read_result(str(tmp_path / "s"))
    assert (found.episodes, result.samples, result.is_whole) == (6, 3, False)
    assert found.metrics["pass@2"].value == 1
    assert result.settings["temperature"] == 1
    ran = run(*options(place, tmp_path / "t", policy, **given, samples=3, temperature=0))
    assert ran.status == 2
    assert "several greedy samples are all alike" in ran.err


def test_what_an_adapter_has_seen_it_is_not_tested_on(run: Run, place: Place, server: FakeVLLM, tmp_path: Path) -> None:
    scenarios = load_scenarios(str(place.scenarios))
    train, test = scenarios.only("train"), scenarios.only("test")
    (tmp_path / "adapter").mkdir()
    policy, seen = f"a=vllm:{server.address}#adapter", f"a={tmp_path / 'adapter'}"
    given: dict[str, Any] = {"tokenizer": place.tokenizer, "max_tokens": 400, "adapter": seen}
    ran = run(*options(place, tmp_path / "e", policy, **given))
    assert ran.status == 2
    assert "does not say what a learned from" in ran.err
    Lineage(learned_from=train.record(), chosen_on=test.record()).write(tmp_path / "adapter")
    for split, said in (("test", "a was chosen on 12 of these 12"), ("train", "a learned from 8 of these 8")):
        ran = run(*options(place, tmp_path / "e", policy, **given, split=split))
        assert ran.status == 2
        assert said in ran.err
    assert server.requests == []
    here = run(*options(place, tmp_path / "e", f"a=transformers:{tmp_path / 'model'}#{tmp_path / 'adapter'}"))
    assert (here.status, "a was chosen on 12 of these 12" in here.err) == (2, True)
    renamed = ScenarioSet.of(each.model_copy(update={"id": f"other-{each.id}"}) for each in test)
    Lineage(learned_from=renamed.record()).write(tmp_path / "adapter")
    assert "a learned from 12 of these 12" in run(*options(place, tmp_path / "e", policy, **given)).err
    Lineage(learned_from=train.record()).write(tmp_path / "adapter")
    checked = run(*options(place, tmp_path / "e", policy, **given))
    assert (checked.status, "is not known" in checked.err) == (0, False)
    assert read_result(str(tmp_path / "e"))[1].is_unseen
    unchecked = run(*options(place, tmp_path / "f", policy, **given | {"adapter": None}))
    assert (unchecked.status, "what a learned from is not known; --adapter a=DIR" in unchecked.err) == (0, True)
    assert not read_result(str(tmp_path / "f"))[1].is_unseen


@pytest.mark.parametrize(
    ("policies", "changes", "said"),
    [
        (
            ("a=chat:base@http://127.0.0.1:9", "a=chat:adapter@http://127.0.0.1:9"),
            {},
            "two policies would be called 'a'",
        ),
        (("nonsense",), {}, "names no policy"),
        (("a=vllm:http://127.0.0.1:9",), {}, "a takes token ids, and needs its model's tokenizer"),
        (("a=chat:base@http://127.0.0.1:9",), {"price": "b=1/2"}, "no policy 'b' for that price"),
        (("a=chat:base@http://127.0.0.1:9",), {"price": "1"}, "--price 1 is no price"),
        (("a=chat:base@http://127.0.0.1:9",), {"price": "nan/1"}, "is no price"),
        (("a=chat:base@http://127.0.0.1:9",), {"judge": "wise"}, "'wise' names no judge"),
        (("a=chat:base@http://127.0.0.1:9",), {"judge": "{openai: {modle: x}}"}, "modle"),
        (("a=chat:base@http://127.0.0.1:9",), {"judge": "{openai: ["}, "cannot be read as YAML"),
        (("a=chat:base@http://127.0.0.1:9",), {"tokenizer": "x"}, "none of these policies takes a tokenizer"),
        (("a=chat:base@http://127.0.0.1:9",), {"split": "tests"}, "there is no split 'tests'"),
        (("a=chat:base@http://127.0.0.1:9",), {"adapter": "a"}, "write NAME=DIR"),
        (("a=chat:base@http://127.0.0.1:9",), {"top_p": 0}, "leaves no token"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_before_anything_starts(
    policies: tuple[str, ...], changes: dict[str, Any], said: str, run: Run, place: Place, tmp_path: Path
) -> None:
    ran = run(*options(place, tmp_path / "e", *policies, **changes))
    assert ran.status == 2
    assert said in ran.err
    assert not (tmp_path / "e" / "trajectories").exists() or not list((tmp_path / "e" / "trajectories").iterdir())


@pytest.fixture(scope="module")
def two(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with an evaluation of two policies."""
    directory = tmp_path_factory.mktemp("evaluation") / "two"
    with FakeVLLM(chat=wrong_about(2, 3, 5, 7)) as server, pytest.raises(SystemExit) as ended:
        main([*map(str, options(place, directory, *chats(server)))])
    assert ended.value.code == 0
    return directory


def test_compare_names_the_questions_that_changed_sides(run: Run, two: Path) -> None:
    ran = run("compare", f"{two}#new", f"{two}#old", "--changed", 2)
    assert ran.status == 0
    assert "+33.3% correct" in ran.out
    assert "won q2: What does message 2 say?" in ran.out
    assert "and 2 more won" in ran.out
    told = json.loads(run("compare", f"{two}#old", f"{two}#new", "--json").out)
    assert told["accuracy"]["difference"] == pytest.approx(-4 / 12)
    assert told["lost"] == ["q2", "q3", "q5", "q7"]


def test_a_stored_metrics_json_is_baseline_enough(run: Run, two: Path, tmp_path: Path) -> None:
    kept = tmp_path / "baseline.json"
    kept.write_bytes((two / "metrics.json").read_bytes())
    ran = run("compare", f"{two}#new", f"{kept}#old")
    assert ran.status == 0
    assert "higher in 66.7%" in ran.out


def test_the_gate_ends_with_0_or_3_and_writes_why(run: Run, two: Path, tmp_path: Path) -> None:
    words = ["--candidate", f"{two}#new", "--baseline", f"{two}#old", "--out", tmp_path / "gate.json"]
    passing = run("gate", *words, "--max-p", 0.2)  # four questions are few
    assert passing.status == 0
    assert passing.out.startswith("new passes. Of 12 questions")
    assert json.loads((tmp_path / "gate.json").read_bytes())["passed"] is True
    failing = run("gate", "--candidate", f"{two}#old", "--baseline", f"{two}#new", "--out", tmp_path / "gate.json")
    assert failing.status == 3
    assert "old does not pass" in failing.err
    assert json.loads((tmp_path / "gate.json").read_bytes())["passed"] is False


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        ("{two}", "holds several policies; write"),
        ("{two}#other", "holds no policy 'other'"),
        ("{two}/none", "there is no evaluation at"),
        ("{two}/predictions.csv", "is no metrics.json of gumshoe"),
    ],
)
def test_what_is_no_evaluation_is_refused(run: Run, two: Path, candidate: str, said: str) -> None:
    ran = run("compare", candidate.format(two=two), f"{two}#old")
    assert ran.status == 2
    assert said in ran.err
