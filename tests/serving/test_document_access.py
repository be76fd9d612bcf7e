"""Access to collections of documents over HTTP and MCP: callers reach only those that their key or token grants."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gumshoe.artifacts.store import Store
from gumshoe.errors import UsageError
from tests.errors import raises
from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import ServerClient, ServerFiles, code_of
from tests.serving.in_process import make_settings, model_settings, serve_in_thread
from tests.serving.mcp_client import call_tools

GRANTS: dict[str, list[str]] = {"hr": ["hr"], "eng": ["eng-*"], "all": ["*"], "none": [], "absent": ["legal"]}
QUESTION = {"question": "What is in 7?"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return a key of each caller in `GRANTS`, and the path of the key file as `file`."""
    from gumshoe.serving.key_file import add_key

    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    return {"file": str(file)} | {name: add_key(file, name, [], granted) for name, granted in GRANTS.items()}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def server(
    place: ServerFiles,
    shared_model: FakeVLLM,
    keys: dict[str, str],
    store: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServerClient]:
    """Serve documents 1 to 9: 7 is in the collection hr, 8 in eng-docs, and the others in none."""
    from tests.documents.pages import make_collection, page

    collections = {7: {"collection": "hr"}, 8: {"collection": "eng-docs"}}
    pages = [page(number, **collections.get(number, {})) for number in range(1, 10)]
    documents = ServerFiles(make_collection(tmp_path_factory.mktemp("walled"), pages), place.tokenizer)
    settings = make_settings(
        documents,
        model=model_settings(documents, shared_model.address),
        access={"keys": keys["file"]},
        store=str(store),
        keeping={"feedback": True},
    )
    with serve_in_thread(settings, key=keys["hr"]) as running:
        yield running


def post(server: ServerClient, path: str, key: str, **body: Any) -> Any:
    return server.client.post(path, json=body, headers={"Authorization": f"Bearer {key}"})


def test_answers_cite_only_readable_documents(server: ServerClient, keys: dict[str, str]) -> None:
    assert post(server, "/invoke", keys["hr"], **QUESTION).json()["source_ids"] == ["d7"]
    for name, cited in {"eng": ["d8"], "absent": []}.items():
        answer = post(server, "/invoke", keys[name], **QUESTION, steps=True)
        assert answer.json()["source_ids"] == cited
        assert "document 7" not in answer.text


def test_sources_of_other_collections_look_like_missing_ones(server: ServerClient, keys: dict[str, str]) -> None:
    readable = {"hr": {"d7"}, "eng": {"d8"}, "all": {f"d{number}" for number in range(1, 10)}, "absent": set()}
    for name, expected in readable.items():
        found = {f"d{n}": post(server, "/source", keys[name], source_id=f"d{n}") for n in range(1, 11)}
        assert {each for each, answer in found.items() if answer.status_code == 200} == expected
        refused = {
            json.dumps({k: v for k, v in answer.json().items() if k != "request_id"}).replace(f"'{each}'", "ID")
            for each, answer in found.items()
            if answer.status_code != 200
        }
        assert len(refused) == 1
        assert "serving.source-not-found" in refused.pop()


def test_tools_reach_only_readable_collections(server: ServerClient, keys: dict[str, str]) -> None:
    calls = [("search_documents", {"query": "body of document 7 8"}), ("read_document", {"document_id": "d7"})]
    calls += [("read_document", {"document_id": "d99"}), ("read_document", {"document_id": "hr:d7"})]
    found, read, missing, qualified = call_tools(server, *calls, key=keys["eng"])
    assert "id: d8" in found[1]
    assert "d7" not in found[1]
    assert [each[0] for each in (read, missing, qualified)] == [True] * 3
    assert read[1] == missing[1].replace("d99", "d7")
    assert qualified[1] == missing[1].replace("d99", "hr:d7")
    _, read, *_ = call_tools(server, *calls, key=keys["hr"])
    assert "Body of document 7" in read[1]


def test_callers_without_collections_are_refused(server: ServerClient, keys: dict[str, str]) -> None:
    feedback = {**QUESTION, "answer": "x", "source_ids": ["d7"], "right": True}
    bodies: dict[str, dict[str, Any]] = {"/invoke": QUESTION, "/source": {"source_id": "d7"}, "/feedback": feedback}
    for path, body in bodies.items():
        refused = post(server, path, keys["none"], **body)
        assert (refused.status_code, code_of(refused)) == (403, "serving.no-collections")
    ((is_error, text),) = call_tools(server, ("search_documents", {"query": "7"}), key=keys["none"])
    assert is_error
    assert "serving.no-collections" in text


def test_requests_cannot_name_collections(server: ServerClient, keys: dict[str, str]) -> None:
    for path, body in {"/invoke": QUESTION, "/source": {"source_id": "d7"}}.items():
        refused = post(server, path, keys["eng"], **body, collections=["*"])
        assert (refused.status_code, code_of(refused)) == (422, "serving.invalid-request")
    ((is_error, _),) = call_tools(server, ("search_documents", {"query": "7", "collections": ["*"]}), key=keys["eng"])
    assert is_error


def test_a_caller_sees_its_collections(server: ServerClient, keys: dict[str, str]) -> None:
    for name, granted in GRANTS.items():
        shown = server.client.get("/principal", headers={"Authorization": f"Bearer {keys[name]}"}).json()
        assert shown["collections"] == granted


def test_feedback_keeps_the_collections_of_its_caller(
    server: ServerClient, keys: dict[str, str], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Feedback cannot ask for documents that its caller may not read, and can be trained on with the same ones."""
    from gumshoe.serving.feedback_recorder import FeedbackRecorder

    kept: list[Any] = []

    def record(_: FeedbackRecorder, scenario: Any) -> bool:
        kept.append(scenario)
        return True

    monkeypatch.setattr(FeedbackRecorder, "record_feedback", record)
    feedback = {**QUESTION, "answer": "Body of document 7", "source_ids": ["d7"], "right": True}
    assert post(server, "/feedback", keys["hr"], **feedback).json() == {"kept": True}
    assert [each.collections for each in kept] == [("hr",)]
    refused = post(server, "/feedback", keys["eng"], **feedback)
    assert (refused.status_code, code_of(refused)) == (422, "serving.source-not-found")
    assert not Store(str(store)).list()


# Granting


def test_patterns_in_key_files_and_settings_are_checked(tmp_path: Path) -> None:
    from gumshoe.serving.key_file import add_key, read_keys

    file = tmp_path / "keys.yaml"
    with raises("documents.invalid-collection-pattern", "HR"):
        add_key(file, "wrong", [], ["HR"])
    assert not file.exists()
    add_key(file, "right", [], ["hr", "eng-*"])
    (entry,) = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump([{**entry, "collections": ["h r"]}]))
    with raises("documents.invalid-collection-pattern", "h r"):
        read_keys(file)
    with pytest.raises(UsageError) as error:
        make_settings(ServerFiles(tmp_path, tmp_path), access={"keys": str(file), "collections": ["A"]})
    assert error.value.code == "serving.invalid-settings"
    assert "access.collections" in error.value.message


def test_the_server_says_if_every_caller_can_read_all_documents(
    place: ServerFiles,
    shared_model: FakeVLLM,
    keys: dict[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from tests.documents.pages import make_collection, page

    documents = ServerFiles(make_collection(tmp_path, [page(7)]), place.tokenizer)
    model = model_settings(documents, shared_model.address)
    with (
        caplog.at_level(logging.WARNING),
        serve_in_thread(
            make_settings(documents, model=model, access={"keys": keys["file"]}), key=keys["none"]
        ) as open_,
    ):
        assert open_.client.post("/source", json={"source_id": "d7"}).status_code == 200
    assert any("has no collections" in each.message for each in caplog.records)
