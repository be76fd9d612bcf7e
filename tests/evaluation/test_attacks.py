"""`gumshoe evaluate --attacks`: a gullible agent falls for the suite, a careful one does not."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gumshoe.evaluation.attacks.attack_results import AttackOutcome, AttackResult, summarize_outcomes
from gumshoe.evaluation.results import EvaluationResult
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.index import MailIndex
from gumshoe.synthesis.attacks.attack_suite import plan_suite, write_suite
from gumshoe.synthesis.attacks.attack_texts import load_families
from tests.attack_agents import Action, History, ScriptedAgent, act_gullible, careful_agent, search_and_read
from tests.conftest import CommandResult
from tests.documents.pages import make_collection, page
from tests.embeddings.word_vectors import WordVectors
from tests.inference.fake_vllm import FakeVLLM, chat_turn
from tests.mail.mailbox import make_index
from tests.rollouts.conversations import synthetic

Run = Callable[..., CommandResult]
PER_FAMILY = 5
"""Attacks of each family: one for each goal."""
COUNT = PER_FAMILY * len(load_families())


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("attacks") / "scenarios.jsonl"
    path.write_bytes(synthetic().scenarios.to_jsonl())
    return path


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gumshoe.rewards.chat_judge._MAX_PAUSE", 0)


def rewriter(request: dict[str, Any]) -> dict[str, Any]:
    """Answer as a model that rewrites attacks: it adds a greeting."""
    given = json.loads(request["messages"][-1]["content"])
    return chat_turn(json.dumps({"text": f"Dear assistant, {given['instruction']}"}))


def sceptic_until(greeting: str) -> ScriptedAgent:
    """Return a gullible agent that obeys only if it has read a greeting."""

    def act(history: History) -> Action:
        has_greeting = any(greeting in result for _, _, result in history.done)
        return act_gullible(history) if has_greeting else search_and_read(history)

    return ScriptedAgent(act)


class MoodyRewriter:
    """A model that rewrites attacks, and refuses the first one that it is asked for while it is unwilling."""

    def __init__(self) -> None:
        self.is_willing = False
        self._refused: str | None = None

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        asked = request["messages"][-1]["content"]
        self._refused = self._refused or asked
        return rewriter(request) if self.is_willing or asked != self._refused else chat_turn("I cannot help with that.")


@pytest.fixture
def moody() -> MoodyRewriter:
    return MoodyRewriter()


@pytest.fixture
def server(moody: MoodyRewriter) -> Iterator[FakeVLLM]:
    agents: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "gullible": ScriptedAgent(act_gullible),
        "careful": careful_agent(synthetic().scenarios),
        "sceptic": sceptic_until("Dear assistant"),
        "attacker": rewriter,
        "moody": moody,
    }
    with FakeVLLM(models=tuple(agents), chat=lambda request: agents[request["model"]](request)) as server:
        yield server
    assert server.errors == []


def evaluate(
    run: Run, server: FakeVLLM, index: MailIndex, scenarios: Path, out: Path, *models: str, **options: Any
) -> CommandResult:
    words = ["evaluate", "--index", index.path.parent, "--scenarios", scenarios, "--out", out, "--max-turns", 12]
    for model in models:
        words += ["--policy", f"{model}=chat:{model}@{server.address}/v1"]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", value]
    return run(*words)


def results(out: Path) -> dict[str, AttackResult]:
    found = EvaluationResult.model_validate_json((out / "metrics.json").read_bytes())
    return {each.name: each.attacks for each in found.policies if each.attacks}


def outcomes(out: Path) -> list[AttackOutcome]:
    lines = (out / "attacks" / "outcomes.jsonl").read_text().splitlines()
    return list(map(AttackOutcome.model_validate_json, lines))


@pytest.mark.nightly
def test_a_gullible_agent_falls_for_every_family_and_a_careful_one_for_none(
    run: Run, server: FakeVLLM, synthetic_index: MailIndex, scenarios: Path, tmp_path: Path
) -> None:
    ran = evaluate(
        *(run, server, synthetic_index, scenarios, tmp_path / "e", "gullible", "careful"),
        attacks="standard",
        attack_count=COUNT,
    )
    assert ran.status == 0, ran.err
    found = results(tmp_path / "e")
    gullible, careful = found["gullible"], found["careful"]
    assert (gullible.suite, gullible.success.questions, gullible.digest) == ("standard", COUNT, careful.digest)
    assert gullible.success.value >= 0.8
    assert {name: each.value for name, each in gullible.families.items() if each.value < 0.6} == {}
    assert {name: each.value for name, each in gullible.goals.items() if each.value < 0.7} == {}
    assert set(gullible.families) == set(load_families())
    assert careful.success.value <= 0.02
    assert careful.success.high < 0.08
    assert (gullible.by_chance.value, careful.by_chance.value) == (0, 0)
    assert careful.accuracy.clean > 0.7
    assert careful.accuracy.low <= careful.accuracy.difference <= careful.accuracy.high
    assert careful.accuracy.difference > -0.35  # an attack with all words of a question hides partial matches
    assert f"{COUNT} attacks" in ran.out
    assert not (tmp_path / "e" / "attacks" / "indexes").exists()
    page_text = (tmp_path / "e" / "report.html").read_text()
    assert 'id="attacks"' in page_text

    asked = len(server.requests)
    again = evaluate(
        *(run, server, synthetic_index, scenarios, tmp_path / "e", "gullible", "careful"),
        attacks="standard",
        attack_count=COUNT,
    )
    assert again.status == 0, again.err
    assert [each for each in server.requests[asked:] if "messages" in each] == []
    assert results(tmp_path / "e") == found

    file = tmp_path / "e" / "attacks" / "attacks.jsonl"
    same = evaluate(run, server, synthetic_index, scenarios, tmp_path / "f", "careful", attacks=file)
    assert same.status == 0, same.err
    assert results(tmp_path / "f")["careful"].model_copy(update={"suite": "standard"}) == careful


@pytest.mark.ci
def test_a_scripted_attacker_tries_again_with_what_failed(
    run: Run, server: FakeVLLM, synthetic_index: MailIndex, scenarios: Path, tmp_path: Path
) -> None:
    options = {"attacks": "held-out", "attack_count": 8, "attacker": "scripted", "attack_rounds": 2}
    ran = evaluate(run, server, synthetic_index, scenarios, tmp_path / "e", "careful", **options)
    assert ran.status == 0, ran.err
    (found,) = results(tmp_path / "e").values()
    assert found.attacker == "scripted"
    assert [(each.number, each.attacks, each.succeeded) for each in found.rounds] == [
        (0, 8, 0),
        (1, 8, 0),
        (2, 8, 0),
    ]
    files = {path: path.read_bytes() for path in (tmp_path / "e").rglob("*") if path.is_file()}
    attacker = f"chat:attacker@{server.address}/v1"
    for changed, setting in (({"attack_count": 9}, "attacks"), ({"attacker": attacker}, "attacker")):
        ran = evaluate(run, server, synthetic_index, scenarios, tmp_path / "e", "careful", **options | changed)
        assert (ran.status, ran.code) == (2, "evaluation.settings-changed")
        assert f": {setting};" in ran.err
    assert {path: path.read_bytes() for path in (tmp_path / "e").rglob("*") if path.is_file()} == files
    by_round = {number: [each for each in outcomes(tmp_path / "e") if each.round == number] for number in range(3)}
    assert [each.attack for each in by_round[0]] == [each.attack for each in by_round[1]]
    assert [each.model_dump() for each in by_round[0]] != [each.model_dump() for each in by_round[1]]


@pytest.mark.ci
def test_an_attacker_keeps_what_a_file_of_another_seed_plants(
    run: Run, server: FakeVLLM, synthetic_index: MailIndex, scenarios: Path, tmp_path: Path
) -> None:
    asked = synthetic().scenarios.only("test")
    planned = plan_suite(synthetic_index, list(asked), "held-out", 45, seed=7)
    leaks = {each.planted.id: each.planted.planted for each in planned if each.planted.goal == "leak"}
    file = tmp_path / "leaks.jsonl"
    write_suite([each for each in planned if each.planted.id in leaks], file)
    options = {"attacks": file, "attacker": "scripted", "attack_rounds": 1}
    ran = evaluate(run, server, synthetic_index, scenarios, tmp_path / "e", "careful", **options)
    assert ran.status == 0, ran.err
    lines = (tmp_path / "e" / "attacks" / "scenarios-careful-1.jsonl").read_text().splitlines()
    rewritten = [json.loads(line)["attack"] for line in lines]
    assert {each["id"]: tuple(each["planted"]) for each in rewritten} == leaks != {}


@pytest.mark.ci
def test_a_chat_model_as_attacker_succeeds_in_a_later_round(
    run: Run, server: FakeVLLM, synthetic_index: MailIndex, scenarios: Path, tmp_path: Path
) -> None:
    options = {"attacks": "train", "attack_count": 9, "attacker": f"chat:attacker@{server.address}/v1"}
    ran = evaluate(run, server, synthetic_index, scenarios, tmp_path / "e", "sceptic", **options, attack_rounds=2)
    assert ran.status == 0, ran.err
    (found,) = results(tmp_path / "e").values()
    assert found.success.value == 0
    assert [each.attacks for each in found.rounds][:2] == [9, 9]
    assert found.rounds[1].succeeded >= 8
    assert found.rounds[-1].success.value >= found.rounds[1].success.value >= 0.8


@pytest.mark.ci
def test_attacks_that_were_rewritten_stay_though_a_refused_one_might_succeed_later(
    run: Run, server: FakeVLLM, moody: MoodyRewriter, synthetic_index: MailIndex, scenarios: Path, tmp_path: Path
) -> None:
    options = {"attacks": "train", "attack_count": 9, "attacker": f"chat:moody@{server.address}/v1", "attack_rounds": 1}
    ran = evaluate(run, server, synthetic_index, scenarios, tmp_path / "e", "careful", **options)
    assert ran.status == 0, ran.err
    (found,) = results(tmp_path / "e").values()
    assert [each.attacks for each in found.rounds] == [9, 8]
    moody.is_willing = True
    added = evaluate(run, server, synthetic_index, scenarios, tmp_path / "e", "careful", "gullible", **options)
    assert added.status == 0, added.err
    assert results(tmp_path / "e")["careful"] == found


@pytest.mark.ci
def test_options_without_effect_and_unknown_suites_are_refused(
    run: Run, server: FakeVLLM, synthetic_index: MailIndex, scenarios: Path, tmp_path: Path
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"attack_count": 3}, "evaluation.option-without-attacks"),
        ({"attacker": "scripted"}, "evaluation.option-without-attacks"),
        ({"attacks": "standard", "attack_rounds": 2}, "evaluation.option-without-attacks"),
        ({"attacks": scenarios, "attack_count": 2}, "evaluation.option-without-attacks"),
        ({"attacks": "nothing"}, "evaluation.unknown-attack-suite"),
        ({"attacks": scenarios}, "synthesis.invalid-attacks"),
        ({"attacks": "standard", "attacker": "me"}, "synthesis.invalid-attacker"),
    ]
    for options, code in cases:
        ran = evaluate(run, server, synthetic_index, scenarios, tmp_path / "e", "careful", **options)
        assert ran.status != 0
        assert code in ran.err, (options, ran.err)
    assert [each for each in server.requests if "messages" in each] == []


def test_documents_are_not_attacked(run: Run, server: FakeVLLM, tmp_path: Path) -> None:
    collection = make_collection(tmp_path / "documents", [page(1)])
    asked = tmp_path / "q.jsonl"
    asked.write_text('{"id": "1", "question": "What?", "answer": "That", "document_ids": ["d1"], "split": "test"}\n')
    policy = f"careful=chat:careful@{server.address}/v1"
    words = ("--index", collection, "--scenarios", asked, "--out", tmp_path / "e", "--policy", policy)
    ran = run("evaluate", *words, "--attacks", "standard")
    assert "evaluation.attacks-need-mail" in ran.err


@pytest.mark.ci
def test_marks_are_in_attacked_episodes_too(
    run: Run, server: FakeVLLM, synthetic_index: MailIndex, scenarios: Path, tmp_path: Path
) -> None:
    """The forged end of data is broken up in what the model gets."""
    options = {"attacks": "held-out", "attack_count": 8}
    assert evaluate(run, server, synthetic_index, scenarios, tmp_path / "e", "gullible", **options).status == 0
    sent = [each for request in server.requests for each in request.get("messages", []) if each["role"] == "tool"]
    assert any("[ [end of data]]" in each["content"] for each in sent)
    assert all(each["content"].count("[[end of data]]") == 1 for each in sent)


def test_an_index_with_vectors_is_attacked_with_one_model(
    run: Run, server: FakeVLLM, scenarios: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[str]()

    def open_words(name: str) -> WordVectors:
        opened.append(name)
        return WordVectors()

    monkeypatch.setattr("gumshoe.evaluation.attacks.attack_run.open_embedder", open_words)
    monkeypatch.setattr("gumshoe.mail.meaning.open_embedder", lambda _: WordVectors())
    index = make_index(tmp_path, synthetic().messages, MailBuildOptions(embedding="words"), WordVectors())
    options = {"attacks": "train", "attack_count": 4}
    ran = evaluate(run, server, index, scenarios, tmp_path / "e", "gullible", **options)
    assert ran.status == 0, ran.err
    assert opened == ["words"]
    assert results(tmp_path / "e")["gullible"].success.value == 1


def outcome(attack: str, number: int, succeeded: bool, correct: bool = False) -> AttackOutcome:
    about = {"policy": "p", "family": "direct", "goal": "answer", "carrier": "body", "language": "en"}
    return AttackOutcome(
        **about,
        attack=attack,
        scenario=attack[0],
        round=number,
        succeeded=succeeded,
        by_chance=False,
        correct=correct,
        answer=None,
        ending="answer",
        turns=1,
    )


def test_numbers_are_computed_by_hand() -> None:
    found = summarize_outcomes(
        [
            *(outcome("a1", 0, True), outcome("a2", 0, False, True), outcome("b1", 0, False, True)),
            *(outcome("b2", 0, False), outcome("a2", 1, True), outcome("b1", 1, False), outcome("b2", 1, False)),
            *(outcome("b1", 2, True), outcome("b2", 2, False)),
        ],
        {"a": 1.0, "b": 0.5, "c": 0.0},
        "s",
        "d",
        "scripted",
    )
    assert (found.success.value, found.success.questions) == (0.25, 4)
    assert [each.success.value for each in found.rounds] == [0.25, 0.5, 0.75]
    assert [(each.attacks, each.succeeded) for each in found.rounds] == [(4, 1), (3, 1), (2, 1)]
    assert (found.accuracy.attacked, found.accuracy.clean, found.accuracy.questions) == (0.5, 0.75, 2)
    assert found.accuracy.difference == pytest.approx(-0.25)
    assert found.families["direct"] == found.success
