"""Rollouts, evaluations and reports with documents and with a custom environment."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.evaluation.results import EvaluationResult
from gumshoe.inference.policy_names import TINY
from gumshoe.rollouts.writer import read_trajectories
from tests.conftest import CommandResult
from tests.documents.pages import make_collection, page
from tests.evaluation.conftest import Place
from tests.inference.fake_vllm import FakeVLLM, chat_turn, write_tokenizer
from tests.scenarios.questions import about_documents, write_questions

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Run = Callable[..., CommandResult]
OWN = "tests.environments.own_environments:NotesEnvironment"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Place:
    directory = tmp_path_factory.mktemp("library")
    index = make_collection(directory, map(page, range(1, 25)))
    lines = [
        about_documents(number, answer=f"Body of document {number}", split="test" if number <= 4 else "train")
        for number in range(1, 8)
    ]
    return Place(index, Path(write_questions(directory / "q.jsonl", lines)), write_tokenizer(directory / "model"))


@pytest.fixture
def server() -> Iterator[FakeVLLM]:
    with FakeVLLM() as server:
        yield server
    assert server.errors == []


def words(command: str, place: Place, server: FakeVLLM, out: Path) -> list[object]:
    policy = ["--policy", f"vllm:{server.address}#adapter", "--tokenizer", place.tokenizer]
    bounds = ["--split", "test", "--max-context", 50_000, "--out", out]
    return [command, "--index", place.index, "--scenarios", place.scenarios, *policy, *bounds]


@pytest.mark.parametrize("reasoning", [True, False])
def test_a_rollout_asks_for_reasoning_if_configured(
    reasoning: bool, run: Run, library: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    out = tmp_path / "t.jsonl"
    more = [] if reasoning else ["--environment", "{documents: {reasoning: false}}"]
    ran = run(*words("rollout", library, server, out), *more)
    assert ran.status == 0, ran.err
    found = list(read_trajectories(out))
    assert [(each.ending, each.turns, each.record.best_rank) for each in found] == [("answer", 3, 1)] * 4
    assert all(each.settings["environment"]["reasoning"] is reasoning for each in found)
    assert all(("<think>" in each.spans[1].text) is reasoning for each in found)
    other = run(
        *words("rollout", library, server, out), "--environment", f"{{documents: {{reasoning: {not reasoning}}}}}"
    )
    assert (other.status, other.code) == (2, "rollouts.other-settings")
    assert "environment" in other.err


def test_a_mail_question_is_rejected_before_any_request(
    run: Run, library: Place, place: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    mixed = Place(library.index, place.scenarios, library.tokenizer)
    ran = run(*words("rollout", mixed, server, tmp_path / "t.jsonl"))
    assert (ran.status, ran.code) == (2, "environments.not-about-documents")
    ran = run(*words("rollout", library, server, tmp_path / "t.jsonl"), "--environment", "email")
    assert (ran.status, ran.code) == (2, "mail.no-index")
    assert str(library.index) in ran.err
    assert not server.requests


def test_a_custom_environment_is_evaluated(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for number in range(1, 4):
        (tmp_path / "notes" / f"d{number}.txt").write_text(f"lamp {number} is blue")
    lines = [about_documents(number, question=f"Which colour has lamp {number}?", answer="blue") for number in (1, 2)]

    def chat(request: dict[str, Any]) -> dict[str, Any]:
        asked = next(each["content"] for each in request["messages"] if each["role"] == "user")
        number = asked.rpartition(" ")[2].strip("?")
        if not any(each["role"] == "tool" for each in request["messages"]):
            return chat_turn(None, ("look_up", json.dumps({"word": f"lamp {number}"})), call="one")
        answer = {"answer": "blue", "document_ids": [f"d{number}"]}
        return chat_turn(None, ("return_final_answer", json.dumps(answer)), call="two")

    with FakeVLLM(chat=chat) as server:
        asked = ["--index", tmp_path / "notes", "--scenarios", write_questions(tmp_path / "q.jsonl", lines)]
        more = ["--policy", f"chat:base@{server.address}/v1", "--split", "all", "--out", tmp_path / "e"]
        unnamed = run("evaluate", *asked, *more)
        assert (unnamed.status, unnamed.code) == (2, "scenarios.no-index")
        assert str(tmp_path / "notes") in unnamed.err
        ran = run("evaluate", *asked, *more, "--environment", f"{{{OWN}: {{shouting: true}}}}")
        assert ran.status == 0, ran.err
    metrics = EvaluationResult.model_validate_json((tmp_path / "e" / "metrics.json").read_bytes()).policies[0].metrics
    assert (metrics["accuracy"].value, metrics["found"].value, metrics["source_accuracy"].value) == (1, 1, 1)


def test_the_environment_is_recorded_if_it_is_named_or_default(
    run: Run, library: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    """Otherwise evaluations with different settings could be compared."""
    noted: list[dict[str, Any]] = []
    for word in (None, "documents", "{documents: {reasoning: true}}"):
        out = tmp_path / f"e{len(noted)}"
        ran = run(*words("evaluate", library, server, out), *(["--environment", word] if word else []))
        assert ran.status == 0, ran.err
        found = EvaluationResult.model_validate_json((out / "metrics.json").read_bytes())
        noted.append(found.policies[0].environment)
    assert noted[0] == noted[1] == noted[2]
    assert noted[0]["name"] == "documents"


@pytest.mark.ci
def test_the_tiny_policy_runs_with_the_settings_of_its_training(
    run: Run, library: Place, server: FakeVLLM, tmp_path: Path
) -> None:
    assert run(*words("evaluate", library, server, tmp_path / "other")).status == 0
    asked = ["--index", library.index, "--scenarios", library.scenarios, "--split", "test", "--limit", 1]
    short = ["--max-turns", 1, "--max-tokens", 8, "--out", tmp_path / "tiny"]
    ran = run("evaluate", *asked, "--policy", f"transformers:{TINY}", *short)
    assert ran.status == 0, ran.err
    tiny, other = (
        EvaluationResult.model_validate_json((tmp_path / name / "metrics.json").read_bytes()).policies[0].environment
        for name in ("tiny", "other")
    )
    assert tiny == {**other, "reasoning": False, "hits": 2, "marks": False}


@pytest.mark.ci
def test_an_evaluation_shows_documents_as_sources(
    run: Run, library: Place, server: FakeVLLM, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The last test of this module: while a browser is open, no event loop can run in this thread."""
    ran = run(*words("evaluate", library, server, tmp_path / "e"))
    assert ran.status == 0, ran.err
    found = EvaluationResult.model_validate_json((tmp_path / "e" / "metrics.json").read_bytes())
    metrics = {name: each.value for name, each in found.policies[0].metrics.items()}
    wanted = {"accuracy": 1, "source_accuracy": 1, "found": 1, "read": 1, "hallucinated_sources": 0}
    assert {name: metrics[name] for name in wanted} == wanted
    assert json.loads((tmp_path / "e" / "private.json").read_text())["inboxes"] == []
    browser: Browser = request.getfixturevalue("browser")
    tab = browser.new_page()
    tab.goto((tmp_path / "e" / "report.html").as_uri())
    tab.click("#list li:nth-child(2)")
    shown = tab.locator("#episode")
    for value in ("Title 2 (d2)", "found", "read", "given"):
        assert value in shown.inner_text()
    marked = shown.locator(".turn.injected span.right")
    assert (marked.count(), "id: d2" in marked.inner_text()) == (1, True)
    assert "correct source" in shown.inner_text()
    tab.close()
