"""The commands `gumshoe evaluate`, `compare` and `gate`, with real servers and a real index."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.private_data import MARK
from gumshoe.cli import main
from gumshoe.evaluation.predictions import read_predictions
from gumshoe.evaluation.results import EVALUATION_FILES, EvaluationResult, read_result
from gumshoe.scenarios.lineage import Lineage
from gumshoe.scenarios.scenario import ScenarioSet
from gumshoe.scenarios.sources import load_scenarios
from tests.conftest import CommandResult, find_free_port
from tests.evaluation.conftest import QUESTIONS, WRONG_ANSWER, Place, wrong_about
from tests.inference.fake_vllm import FakeVLLM, choice, raw, reset, status
from tests.mail.mailbox import make_index, record
from tests.rewards.chat_judge import late, says, verdict
from tests.scenarios.questions import question
from tests.waiting import Clock

Run = Callable[..., CommandResult]
CHAT = "a=chat:base@http://127.0.0.1:9"


def options(place: Place, out: Path, *policies: str, **changes: object) -> list[object]:
    """Return the arguments of an evaluation. A list repeats an option, and `None` omits it."""
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
    """Return two policies: a baseline that errs, and one that does not."""
    return f"old=chat:base@{server.address}/v1", f"new=chat:adapter@{server.address}/v1"


def test_after_a_part_of_a_split_the_whole_split_is_suggested(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    ran = run(*options(place, tmp_path / "e", *chats(server), limit=2))
    assert ran.status == 0, ran.err
    assert f"Next: gumshoe evaluate --index {place.index}" in ran.err
    assert "--limit" not in ran.err
    assert f"--out {tmp_path / 'e-whole'}" in ran.err, "the directory keeps its settings"


def test_two_policies_are_evaluated_and_compared(run: Run, place: Place, server: FakeVLLM, tmp_path: Path) -> None:
    ran = run(*options(place, tmp_path / "e", *chats(server), price=["1/10", "new=2/20"]))
    assert ran.status == 0, ran.err
    assert "new vs. old: +33.3%" in ran.out
    for value in ("4 won", "0 lost", "8 unchanged"):
        assert value in ran.out
    assert "Next: gumshoe gate" in ran.err
    assert {each.name for each in (tmp_path / "e").iterdir()} <= {each.rstrip("/") for each in EVALUATION_FILES}
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
    assert rows[1]["old: answer"] == WRONG_ANSWER
    assert (tmp_path / "e" / "report.html").stat().st_size > 10_000


def test_answered_questions_are_not_run_again_when_a_policy_is_added(
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


def test_a_second_judge_does_not_need_the_policies(run: Run, place: Place, server: FakeVLLM, tmp_path: Path) -> None:
    given: dict[str, Any] = {"tokenizer": place.tokenizer, "max_tokens": 400}
    assert run(*options(place, tmp_path / "e", f"a=vllm:{server.address}#adapter", **given)).status == 0
    gone = f"a=vllm:http://127.0.0.1:{find_free_port()}#adapter"
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
    assert (other.status, other.code) == (2, "evaluation.settings-changed")
    assert "tokenizer of a" in other.err


@pytest.mark.parametrize(
    ("agent", "code"),
    [
        ("tests.gateway.python_agents:async_function", "inference.token-policy-required"),
        ("no_such.module:agent", "gateway.agent-import-failed"),
    ],
)
def test_an_agent_that_cannot_work_is_refused_before_any_episode(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path, agent: str, code: str
) -> None:
    policies = (f"a=vllm:{server.address}#adapter", chats(server)[0])
    ran = run(*options(place, tmp_path / "e", *policies, tokenizer=place.tokenizer, agent=agent))
    assert (ran.status, ran.code) == (2, code)
    assert (server.requests, (tmp_path / "e").exists()) == ([], False)


@pytest.mark.parametrize("command", ["evaluate", "rollout"])
def test_a_model_is_not_converted_before_the_scenarios_are_read(
    run: Run, place: Place, command: str, tmp_path: Path
) -> None:
    given = ["--index", place.index, "--scenarios", tmp_path / "none.jsonl", "--out", tmp_path / "out"]
    refused = run(command, *given, "--policy", "local:gguf:none.gguf")
    assert (refused.status, refused.code) == (2, "store.not-found")
    assert "none.jsonl" in refused.err


def test_a_replaced_adapter_is_detected(run: Run, place: Place, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"old")
    policy = f"a=transformers:{tmp_path / 'nothing'}#{adapter}"
    first, again = (run(*options(place, tmp_path / "e", policy)) for _ in range(2))
    assert first.code == again.code == "sources.no-such-model-directory"
    (adapter / "adapter_model.safetensors").write_bytes(b"new")
    other = run(*options(place, tmp_path / "e", policy))
    assert (other.status, other.code) == (2, "evaluation.settings-changed")
    assert "weights of a" in other.err


def test_other_questions_or_settings_in_the_same_directory_are_rejected(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    old, _ = chats(server)
    assert run(*options(place, tmp_path / "e", old)).status == 0
    asked = len(server.requests)
    for changes, differing in (
        ({"split": "train"}, "scenarios"),
        ({"limit": 3}, "scenarios"),
        ({"max_turns": 4}, "max_turns"),
        ({"samples": 2}, "samples, temperature"),
    ):
        ran = run(*options(place, tmp_path / "e", old, **changes))
        assert (ran.status, ran.code) == (2, "evaluation.settings-changed")
        assert f"different settings: {differing};" in ran.err
        assert str(tmp_path / "e") in ran.err
    assert len(server.requests) == asked


def test_another_index_or_model_with_the_same_name_is_rejected(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    old, _ = chats(server)
    assert run(*options(place, tmp_path / "e", old)).status == 0
    asked = len(server.requests)
    other = make_index(tmp_path / "mail", map(record, range(1, 26))).path.parent
    ran = run(*options(place, tmp_path / "e", old, index=other))
    assert (ran.status, ran.code) == (2, "evaluation.settings-changed")
    assert ": index;" in ran.err
    ran = run(*options(place, tmp_path / "e", f"old=chat:adapter@{server.address}/v1"))
    assert (ran.status, ran.code) == (2, "evaluation.settings-changed")
    assert ": policy old" in ran.err
    assert len(server.requests) == asked
    assert (tmp_path / "e" / "metrics.json").exists()


def test_a_failed_evaluation_leaves_no_old_results(run: Run, place: Place, server: FakeVLLM, tmp_path: Path) -> None:
    old, new = chats(server)
    assert run(*options(place, tmp_path / "e", old)).status == 0
    server.inject(status(400), times=None)
    assert run(*options(place, tmp_path / "e", old, new)).status == 75
    assert {each.name for each in (tmp_path / "e").iterdir()} == {"evaluation.json", MARK, "trajectories"}


def test_server_failures_are_not_scored(run: Run, place: Place, server: FakeVLLM, tmp_path: Path) -> None:
    old, new = chats(server)
    for after, act in enumerate((reset, status(500), status(429), raw(b"no JSON"), choice(message=None))):
        server.inject(act, after=3 + 5 * after)
    ran = run(*options(place, tmp_path / "a", old))
    assert ran.status == 0, ran.err
    assert len(server.requests) >= 3 * QUESTIONS + 5
    assert "66.7%" in ran.out
    server.inject(status(400), times=None)  # the client retries 500, but not 400
    ran = run(*options(place, tmp_path / "b", old, new))
    assert (ran.status, ran.code) == (75, "evaluation.questions-unanswered")
    assert ran.err.count(f"{QUESTIONS} questions") == 2, "of old and of new"
    assert not (tmp_path / "b" / "metrics.json").exists()


@pytest.mark.ci
def test_if_the_judge_fails_answers_are_kept_and_missing_verdicts_added(
    run: Run, place: Place, server: FakeVLLM, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    old, _ = chats(server)
    with FakeVLLM(chat=says(verdict)) as judge:
        named = f"{{openai: {{model: base, url: '{judge.address}/v1', cache: null, concurrency: 1, deadline: 60}}}}"
        judge.inject(late(clock, 61), times=None)
        ran = run(*options(place, tmp_path / "e", old, judge=named))
        assert (ran.status, ran.code) == (75, "evaluation.verdicts-missing")
        for value in ("openai:base", f"{QUESTIONS} answers of old", "[judges.timeout]"):
            assert value in ran.err
        assert not (tmp_path / "e" / "metrics.json").exists()
    asked = len(server.requests)
    with FakeVLLM(chat=says(lambda _: "As I see it, it is fine.")) as judge:
        named = f"{{openai: {{model: base, url: '{judge.address}/v1', cache: null}}}}"
        ran = run(*options(place, tmp_path / "e", old, judge=named))
        assert (ran.status, ran.code) == (75, "evaluation.verdicts-missing")
        assert "[judges.unusable-answer]" in ran.err
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
    assert "11 of 12 answers" in ran.out
    assert "kappa 0.00" in ran.out
    _, policy = read_result(str(tmp_path / "e"))
    assert policy.agreement is not None
    assert policy.agreement.disagreements == ("q4/0",)
    assert (policy.agreement.judges, policy.agreement.kappa) == (("heuristic", "exact"), 0)
    assert policy.metrics["accuracy"].value == 1
    twice = run(*options(place, tmp_path / "f", chats(server)[0], judge=["exact", "exact", "exact"]))
    assert (twice.status, twice.code) == (2, "evaluation.wrong-judge-count")
    assert "got 3" in twice.err


def test_the_default_is_greedy_and_several_samples_give_pass_at_k(
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
    assert (ran.status, ran.code) == (2, "rewards.greedy-samples")


@pytest.mark.ci
def test_an_evaluation_is_not_continued_with_another_model_of_a_server(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    server.roots = {"adapter": "/adapters/v1"}
    given: dict[str, Any] = {"tokenizer": place.tokenizer, "max_tokens": 400}
    first = run(*options(place, tmp_path / "e", f"a=vllm:{server.address}#adapter", **given, limit=1))
    assert first.status == 0, first.err
    asked = len(server.requests)
    with FakeVLLM() as other:  # at another address, as after a restart
        for path, status in (("/adapters/v2", 2), ("/adapters/v1", 0)):
            other.roots = {"adapter": path}
            ran = run(*options(place, tmp_path / "e", f"a=vllm:{other.address}#adapter", **given, limit=1))
            assert ran.status == status, ran.err
            assert status == 0 or (ran.code, "served model of a" in ran.err) == ("evaluation.settings-changed", True)
        assert (other.requests, len(server.requests)) == ([], asked)
    (tmp_path / "adapter").mkdir()
    Lineage(learned_from=load_scenarios(str(place.scenarios)).only("train").to_record()).write(tmp_path / "adapter")
    named = {"adapter": f"a={tmp_path / 'adapter'}"}
    late = run(*options(place, tmp_path / "e", f"a=vllm:{server.address}#adapter", **given, **named, limit=1))
    assert (late.code, "adapter of a" in late.err) == ("evaluation.settings-changed", True)


@pytest.mark.ci
def test_an_adapter_is_not_tested_on_scenarios_that_it_has_seen(
    run: Run, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    scenarios = load_scenarios(str(place.scenarios))
    train, test = scenarios.only("train"), scenarios.only("test")
    (tmp_path / "adapter").mkdir()
    policy, seen = f"a=vllm:{server.address}#adapter", f"a={tmp_path / 'adapter'}"
    given: dict[str, Any] = {"tokenizer": place.tokenizer, "max_tokens": 400, "adapter": seen}
    ran = run(*options(place, tmp_path / "e", policy, **given))
    assert (ran.status, ran.code) == (2, "evaluation.lineage-missing")
    assert str(tmp_path / "adapter") in ran.err
    Lineage(learned_from=train.to_record(), chosen_on=test.to_record()).write(tmp_path / "adapter")
    for split, code, count in (
        ("test", "scenarios.seen-in-selection", "12"),
        ("all", "scenarios.seen-in-training", "8"),
    ):
        ran = run(*options(place, tmp_path / "e", policy, **given, split=split))
        assert (ran.status, ran.code) == (2, code)
        assert f"{count} of " in ran.err
    assert server.requests == []
    here = run(*options(place, tmp_path / "e", f"a=transformers:{tmp_path / 'model'}#{tmp_path / 'adapter'}"))
    assert (here.status, here.code) == (2, "scenarios.seen-in-selection")
    allowed = run(*options(place, tmp_path / "t", policy, **given, split="train"))
    assert allowed.status == 0, allowed.err
    result, found = read_result(str(tmp_path / "t"))
    assert (found.is_unseen, found.seen, result.split) == (False, 8, "train")
    shown = [allowed.err, (tmp_path / "t" / "report.html").read_text()]
    both = str(tmp_path / "t")
    shown.append(run("compare", both, both).err)
    assert all("trained or selected on 8 of these 8 questions" in each for each in shown)
    assert f"Next: gumshoe scenarios sort {place.scenarios} --by {tmp_path / 't'}" in allowed.err
    assert run("gate", "--candidate", both, "--baseline", both).code == "gate.not-test-split"
    renamed = ScenarioSet.of(each.model_copy(update={"id": f"other-{each.id}"}) for each in test)
    Lineage(learned_from=renamed.to_record()).write(tmp_path / "adapter")
    ran = run(*options(place, tmp_path / "e", policy, **given))
    assert (ran.code, "12 of " in ran.err) == ("scenarios.seen-in-training", True)
    Lineage(learned_from=train.to_record()).write(tmp_path / "adapter")
    checked = run(*options(place, tmp_path / "e", policy, **given))
    assert (checked.status, "--adapter a=DIR" in checked.err) == (0, False)
    assert read_result(str(tmp_path / "e"))[1].is_unseen
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"old")
    assert run(*options(place, tmp_path / "g", policy, **given)).status == 0
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(b"new")
    replaced = run(*options(place, tmp_path / "g", policy, **given))
    assert (replaced.status, replaced.code) == (2, "evaluation.settings-changed")
    assert "adapter of a" in replaced.err
    unchecked = run(*options(place, tmp_path / "f", policy, **given | {"adapter": None}))
    assert (unchecked.status, "--adapter a=DIR" in unchecked.err) == (0, True)
    assert not read_result(str(tmp_path / "f"))[1].is_unseen


@pytest.mark.parametrize(
    ("policies", "changes", "code", "value"),
    [
        (
            ("a=chat:base@http://127.0.0.1:9", "a=chat:adapter@http://127.0.0.1:9"),
            {},
            "evaluation.duplicate-policy-name",
            "'a'",
        ),
        (("nonsense",), {}, "inference.invalid-policy", "'nonsense'"),
        (("a=vllm:http://127.0.0.1:9",), {}, "inference.tokenizer-required", "a (vllm:http://127.0.0.1:9)"),
        ((CHAT,), {"price": "b=1/2"}, "evaluation.option-for-unknown-policy", "--price names the unknown policy 'b'"),
        ((CHAT,), {"adapter": "b=x"}, "evaluation.option-for-unknown-policy", "--adapter names the unknown policy 'b'"),
        ((CHAT,), {"price": "1"}, "evaluation.invalid-price", "got 1"),
        ((CHAT,), {"price": "nan/1"}, "evaluation.invalid-price", "got nan/1"),
        ((CHAT,), {"judge": "wise"}, "judges.unknown-judge", "'wise'"),
        ((CHAT,), {"judge": "{openai: {modle: x}}"}, "judges.invalid-settings", "modle"),
        ((CHAT,), {"judge": "{openai: ["}, "judges.invalid-yaml", "{openai: ["),
        ((CHAT,), {"tokenizer": "x"}, "inference.tokenizer-not-accepted", "--tokenizer"),
        ((CHAT,), {"split": "tests"}, "scenarios.unknown-split", "tests"),
        ((CHAT,), {"adapter": "a"}, "evaluation.invalid-adapter-option", "got a"),
        ((CHAT,), {"top_p": 0}, "rollouts.top-p-zero", "--top-p"),
    ],
)
def test_invalid_settings_are_rejected_before_any_request(
    policies: tuple[str, ...], changes: dict[str, Any], code: str, value: str, run: Run, place: Place, tmp_path: Path
) -> None:
    ran = run(*options(place, tmp_path / "e", *policies, **changes))
    assert (ran.status, ran.code) == (2, code), ran.err
    assert value in ran.err
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
    assert "+33.3%" in ran.out
    assert f"won q2: {question(2)['question']}" in ran.out
    assert "and 2 more won" in ran.out
    told = json.loads(run("compare", f"{two}#old", f"{two}#new", "--json").out)
    assert told["accuracy"]["difference"] == pytest.approx(-4 / 12)
    assert told["lost"] == ["q2", "q3", "q5", "q7"]


def test_a_metrics_json_alone_can_be_the_baseline(run: Run, two: Path, tmp_path: Path) -> None:
    kept = tmp_path / "baseline.json"
    kept.write_bytes((two / "metrics.json").read_bytes())
    ran = run("compare", f"{two}#new", f"{kept}#old")
    assert ran.status == 0
    assert "higher in 66.7%" in ran.out


def test_the_gate_exits_with_0_or_3_and_writes_its_decision(run: Run, two: Path, tmp_path: Path) -> None:
    words = ["--candidate", f"{two}#new", "--baseline", f"{two}#old", "--out", tmp_path / "gate.json"]
    passing = run("gate", *words, "--max-p", 0.2)  # only four questions changed sides
    assert passing.status == 0
    decision = json.loads((tmp_path / "gate.json").read_bytes())
    assert (decision["passed"], decision["code"], decision["comparison"]["questions"]) == (True, None, QUESTIONS)
    assert passing.out == f"{decision['why']}\n"
    failing = run("gate", "--candidate", f"{two}#old", "--baseline", f"{two}#new", "--out", tmp_path / "gate.json")
    assert (failing.status, failing.code) == (3, "gate.gain-too-small")
    decision = json.loads((tmp_path / "gate.json").read_bytes())
    assert (decision["passed"], decision["code"]) == (False, "gate.gain-too-small")
    assert decision["why"] in failing.err
    told = run("gate", "--candidate", f"{two}#old", "--baseline", f"{two}#new", "--json")
    assert (told.status, json.loads(told.out)) == (3, decision)


@pytest.mark.parametrize(
    ("candidate", "code", "value"),
    [
        ("{two}", "evaluation.policy-not-named", "2 policies"),
        ("{two}#other", "evaluation.policy-not-found", "'other'"),
        ("{two}/none", "evaluation.not-found", "{two}/none"),
        ("{two}/predictions.csv", "evaluation.invalid-metrics-file", "{two}/predictions.csv"),
    ],
)
def test_an_invalid_evaluation_is_rejected(run: Run, two: Path, candidate: str, code: str, value: str) -> None:
    ran = run("compare", candidate.format(two=two), f"{two}#old")
    assert (ran.status, ran.code) == (2, code)
    assert value.format(two=two) in ran.err
