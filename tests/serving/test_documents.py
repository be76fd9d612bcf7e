"""Test an agent server that answers from documents: over HTTP, over MCP and on its page."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.environments.data_marks import enclose_data, strip_marks
from tests.conftest import CommandResult
from tests.inference.fake_vllm import FakeVLLM, decoded
from tests.serving.agent_server import ANN, AgentProcess, ServerClient, ServerFiles, add_key, code_of, start_server
from tests.serving.in_process import make_settings, model_settings, serve_in_thread
from tests.serving.mcp_client import call_tools, list_tools
from tests.serving.test_page import expect, open_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

QUESTION = {"question": "What is in 7?", "query_date": "2001-06-01"}
TITLES = {7: "<b>Seven</b> & more", 19: ""}
LONG = f"It begins. {'So on. ' * 5000}It ends."


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def library(
    place: ServerFiles, shared_model: FakeVLLM, store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AgentProcess]:
    """Start a server with documents 1 to 20 and a long one, and two keys: one without inboxes, and one for Ann's."""
    from tests.documents.pages import make_collection, page

    directory = tmp_path_factory.mktemp("library")
    pages = [page(number, title=TITLES.get(number, f"Title {number}")) for number in range(1, 21)]
    index = make_collection(directory, [*pages, page(21, title="Long", text=LONG)])
    key = add_key(directory / "keys", "reader", [])
    (directory / "ann").write_text(add_key(directory / "keys", "ann", [ANN]))
    keeping = ["--store", str(store), "--set", "keeping.feedback=true", "--set", "keeping.trajectories=1"]
    policy = f"vllm:{shared_model.address}#adapter"
    words = ["--keys", str(directory / "keys"), *keeping]
    with start_server(ServerFiles(index, place.tokenizer), policy, directory / "log", *words, key=key) as running:
        yield running


def ask(server: ServerClient, **changes: Any) -> Any:
    return server.client.post("/invoke", json={"parameters": QUESTION | changes})


def test_a_question_is_answered_without_an_inbox(library: AgentProcess, model: FakeVLLM) -> None:
    answer = ask(library, steps=True).json()
    assert answer | {"seconds": 0, "steps": [], "cost": None} == {
        "question": "What is in 7?",
        "inbox_address": None,
        "query_date": "2001-06-01",
        "answer": "Body of document 7",
        "source_ids": ["d7"],
        "sources": [{"document_id": "d7", "title": TITLES[7], "url": "https://example.com/7"}],
        "success": True,
        "reason": "",
        "steps": [],
        "policy": "adapter",
        "turns": 3,
        "seconds": 0,
        "cost": None,
        "chosen": "",
        "handles": {},
    }
    assert [each["tool"] for each in answer["steps"]] == ["search_documents", "read_document", "return_final_answer"]
    assert [answer["steps"][0][name] for name in ("text", "reasoning")] == ["", "Turn 1."]
    assert "in <think> and </think>" in decoded(model.requests[0]["prompt"])


def test_without_a_query_date_the_prompt_has_no_date(library: AgentProcess, model: FakeVLLM) -> None:
    """Check that prompts are the same as in training on questions without a date."""
    assert ask(library).json()["query_date"] == "2001-06-01"
    assert "Today is Friday, 2001-06-01." in decoded(model.requests[-1]["prompt"])
    answer = ask(library, query_date=None).json()
    assert (answer["answer"], answer["query_date"]) == ("Body of document 7", None)
    assert "Today is" not in decoded(model.requests[-1]["prompt"])
    feedback = {name: answer[name] for name in ("question", "query_date", "answer", "source_ids")}
    assert library.client.post("/feedback", json={**feedback, "right": True}).json() == {"kept": True}


def test_queries_are_embedded_at_an_endpoint(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    from gumshoe.documents.build import DocumentBuildOptions, build_document_index
    from tests.documents.collection import write_jsonl
    from tests.documents.pages import page

    options = DocumentBuildOptions(f"openai:base@{model.address}/v1")
    build_document_index([write_jsonl(tmp_path / "d.jsonl", map(page, range(1, 9)))], tmp_path / "index", options)
    documents = ServerFiles(tmp_path / "index", place.tokenizer)
    with serve_in_thread(make_settings(documents, model=model_settings(documents, model.address))) as server:
        answer = ask(server, steps=True).json()
    assert "  id: d" in answer["steps"][0]["result"]


def test_inboxes_and_unknown_keys_are_refused(library: AgentProcess) -> None:
    refused = ask(library, inbox_address=ANN)
    assert (refused.status_code, code_of(refused)) == (422, "serving.inbox-not-supported")
    assert "inbox_address" in refused.json()["detail"]
    stranger = library.client.post("/invoke", json=QUESTION, headers={"Authorization": "Bearer gum_none"})
    assert (stranger.status_code, code_of(stranger)) == (401, "serving.unknown-key")
    known = (library.log.parent / "ann").read_text()
    assert library.client.post("/invoke", json=QUESTION, headers={"Authorization": f"Bearer {known}"}).is_success
    caller = library.client.get("/principal").json()
    assert caller == {
        "name": "reader",
        "inboxes": [],
        "collections": [],
        "has_inboxes": False,
        "feedback": True,
        "consent": "none",
        "sources": True,
    }


def test_a_source_is_read_without_an_inbox(library: AgentProcess) -> None:
    found = library.client.post("/source", json={"source_id": "d7"}).json()
    source = {"document_id": "d7", "title": TITLES[7], "url": "https://example.com/7"}
    assert found == {"source": source, "details": {}, "text": "Body of document 7", "truncated": False}
    missing = library.client.post("/source", json={"source_id": "d99"})
    assert (missing.status_code, code_of(missing)) == (404, "serving.source-not-found")
    refused = library.client.post("/source", json={"source_id": "d7", "inbox_address": ANN})
    assert (refused.status_code, code_of(refused)) == (422, "serving.inbox-not-supported")


def test_a_key_without_inboxes_reads_no_mail(place: ServerFiles, shared_model: FakeVLLM, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "reader", [])
    access = {"keys": str(tmp_path / "keys")}
    model = model_settings(place, shared_model.address)
    with serve_in_thread(make_settings(place, model=model, access=access), key=key) as mail:
        assert code_of(ask(mail)) == "serving.inbox-missing"
        assert code_of(ask(mail, inbox_address=ANN)) == "serving.inbox-forbidden"
        assert mail.client.get("/principal").json()["has_inboxes"] is True


def test_mcp_clients_get_the_tools_for_documents(library: AgentProcess) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search_documents", {"query": "body of 7"}),
        ("read_document", {"document_id": "d7"}),
        ("read_document", {"document_id": "d99"}),
        *(("read_document", {"document_id": "d21", "page": number}) for number in (1, 2)),
        ("search_documents", {"query": 7}),
        ("ask", {"question": "What is in 7?"}),
    ]
    tools, (found, read, missing, *long, wrong, answered) = list_tools(library), call_tools(library, *calls)
    assert set(tools) == {"search_documents", "read_document", "ask"}
    schema = tools["search_documents"].input_schema
    assert "look for" in schema["properties"]["query"]["description"]
    assert list(schema["properties"]) == schema["required"] == ["query"]
    assert tools["search_documents"].description.startswith("Search the documents")
    assert list(tools["ask"].input_schema["properties"]) == ["question"]
    assert (found[0], "  id: d7" in found[1]) == (False, True)
    assert read == (False, enclose_data(f"{TITLES[7]}\n\nBody of document 7"))
    assert (missing[0], "'d99'" in missing[1]) == (True, True)
    assert not any(failed for failed, _ in long)
    assert "".join(strip_marks(text).partition("\n\n")[2] for _, text in long) == LONG
    assert wrong[0]
    assert json.loads(answered[1])["sources"] == [
        {"document_id": "d7", "title": TITLES[7], "url": "https://example.com/7"}
    ]


@pytest.mark.ci
def test_the_page_hides_inbox_and_date_and_shows_documents(
    library: AgentProcess, model: FakeVLLM, browser: "Browser"
) -> None:
    for tab in open_page(browser, library.url, "401"):
        tab.get_by_label("Key").fill(str(library.key))
        tab.get_by_role("button", name="Sign in").click()
        tab.get_by_label("What do you want to know?").fill("What is in 7?")
        expect(tab.get_by_label("Inbox")).to_be_hidden()
        expect(tab.get_by_label("As of")).to_be_hidden()
        tab.get_by_role("button", name="Ask", exact=True).click()
        expect(tab.locator("#answer")).to_have_text("Body of document 7")
        expect(tab.locator("#sources a")).to_have_attribute("href", "https://example.com/7")
        expect(tab.locator("#steps > li").first).to_contain_text("Turn 1.")
        assert tab.locator("#steps summary").all_text_contents()[:2] == [
            "Searched for “body of 7”: 10 passages",
            f"Read “{TITLES[7]}”",
        ]
        tab.get_by_role("button", name=TITLES[7]).click()
        expect(tab.locator("#source mark")).to_have_text("Body of document 7")
        expect(tab.locator("#source a")).to_have_attribute("href", "https://example.com/7")
        tab.get_by_role("button", name="Close").click()
        tab.get_by_role("button", name="Yes").click()
        expect(tab.locator("#note")).to_have_text("Thank you.")
        assert "Today is" not in decoded(model.requests[-1]["prompt"])
        tab.get_by_label("What do you want to know?").fill("What is in 19?")
        tab.get_by_role("button", name="Ask", exact=True).click()
        expect(tab.locator("#sources button")).to_have_text("https://example.com/19")


def test_gumshoe_ask_needs_no_inbox_for_documents(library: AgentProcess, run: Callable[..., CommandResult]) -> None:
    ran = run("ask", "What is in 7?", "--url", library.url, "--key", library.key)
    assert (ran.status, ran.out.splitlines()[0]) == (0, "Body of document 7"), ran.err
    assert f"{TITLES[7]} d7 https://example.com/7" in ran.out


def test_records_about_documents_have_no_inbox(library: AgentProcess, store: Path, tmp_path: Path) -> None:
    """Must be the last test of this module: it stops the server."""
    from gumshoe.rollouts.writer import read_trajectories
    from gumshoe.scenarios.sources import load_scenarios

    feedback = {**QUESTION, "answer": "Body of document 7", "source_ids": ["d7"], "right": True}
    assert library.client.post("/feedback", json=feedback).json() == {"kept": True}
    wrong = library.client.post("/feedback", json=feedback | {"source_ids": ["d99"]})
    assert (wrong.status_code, code_of(wrong)) == (422, "serving.source-not-found")
    assert "'d99'" in wrong.json()["detail"]
    library.process.send_signal(signal.SIGTERM)
    assert library.process.wait() == 0
    (version,) = Store(str(store)).list("feedback")
    kept = Store(str(store)).fetch(version.reference, tmp_path / "kept").directory
    scenarios = load_scenarios(str(kept / "scenarios.jsonl")).scenarios
    assert {each.document_ids for each in scenarios} == {("d7",)}
    assert {each.inbox_address for each in scenarios} == {None}
    assert all(
        each.record.right_sources or each.record.read_others for each in read_trajectories(kept / "trajectories.jsonl")
    )
    assert json.loads((kept / "private.json").read_text()) == {"inboxes": [], "beside": []}
