"""Test reading the sources of answers: only in inboxes that the caller may read, and as of the question's date."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.agent_server import ANN, BOB, DAY, EVE, SECRET, ServerClient, ServerFiles, add_key, code_of
from tests.serving.in_process import make_settings, model_settings, serve_in_thread

NOBODY = "nobody@nowhere.example"


@pytest.fixture(scope="module")
def server(place: ServerFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerClient]:
    """Start a server without a model, and with a key for all of example.com."""
    keys = tmp_path_factory.mktemp("source") / "keys"
    key = add_key(keys, "company", ["*@example.com"])
    settings = make_settings(place, model=model_settings(place, "http://127.0.0.1:1"), access={"keys": str(keys)})
    with serve_in_thread(settings, key=key, ready=False) as running:
        yield running


def read(server: ServerClient, source_id: str = "<7@example.com>", **changes: Any) -> httpx.Response:
    fields = {"source_id": source_id, "inbox_address": ANN, "query_date": DAY, **changes}
    body = {name: value for name, value in fields.items() if value is not None}
    return server.client.post("/source", json=body)


@pytest.mark.parametrize("source_id", ["<7@example.com>", "7@example.com"])
def test_a_message_of_the_inbox_is_read_as_plain_data(server: ServerClient, source_id: str) -> None:
    response = read(server, source_id)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.headers["cache-control"] == "no-store"
    assert response.json() == {
        "source": {
            "message_id": "<7@example.com>",
            "sent": "2001-05-08T12:00:00Z",
            "sender": ANN,
            "subject": "Subject 7",
        },
        "details": {"From": f"<{ANN}>", "To": BOB, "Date": "Tuesday, 2001-05-08 12:00"},
        "text": "Body of message 7",
        "truncated": False,
    }
    assert read(server, source_id, inbox_address=BOB).json() == response.json()
    assert server.client.get("/principal").json()["sources"] is True


def test_a_message_of_another_inbox_does_not_exist(server: ServerClient) -> None:
    foreign, missing = read(server, "<99@example.com>"), read(server, "<98@example.com>")
    assert (foreign.status_code, missing.status_code) == (404, 404)
    assert code_of(foreign) == code_of(missing) == "serving.source-not-found"
    assert foreign.json()["detail"].replace("99", "98") == missing.json()["detail"]
    assert SECRET not in foreign.text


def test_an_inbox_that_the_caller_may_not_read_is_refused(server: ServerClient) -> None:
    existing, missing = read(server, "<99@example.com>", inbox_address=EVE), read(server, inbox_address=NOBODY)
    assert (existing.status_code, missing.status_code) == (403, 403)
    assert code_of(existing) == code_of(missing) == "serving.inbox-forbidden"
    assert existing.json()["detail"] == missing.json()["detail"]
    assert code_of(read(server, inbox_address=None)) == "serving.inbox-missing"


def test_a_message_after_the_date_of_the_question_does_not_exist(server: ServerClient) -> None:
    assert read(server, query_date="2001-05-08").status_code == 200
    assert code_of(read(server, query_date="2001-05-07")) == "serving.source-not-found"


@pytest.mark.parametrize("changes", [{"source_id": ""}, {"source_id": "x" * 1001}, {"query_date": "May"}, {"more": 1}])
def test_an_invalid_request_is_refused(server: ServerClient, changes: dict[str, Any]) -> None:
    response = read(server, **changes)
    assert (response.status_code, code_of(response)) == (422, "serving.invalid-request")


def test_a_long_text_is_shortened(server: ServerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gumshoe.serving.service._MAX_SOURCE_TEXT", 4)
    found = read(server).json()
    assert (found["text"], found["truncated"]) == ("Body", True)


def test_an_environment_may_not_offer_its_sources(place: ServerFiles, tmp_path: Path) -> None:
    (tmp_path / "d1.txt").write_text("A note.")
    settings = make_settings(
        ServerFiles(tmp_path, place.tokenizer),
        model=model_settings(place, "http://127.0.0.1:1"),
        environment="tests.environments.own_environments:NotesEnvironment",
    )
    with serve_in_thread(settings, ready=False) as running:
        assert running.client.get("/principal").json()["sources"] is False
        response = read(running, "d1", inbox_address=None, query_date=None)
        assert (response.status_code, code_of(response)) == (404, "serving.sources-not-readable")
