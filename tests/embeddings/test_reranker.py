"""Rerankers: the endpoint with its failures, a cross-encoder, and their settings."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gumshoe.embeddings.reranker import EndpointReranker, RerankSettings, open_reranker, parse_rerank_option
from tests.embeddings.cross_encoder import write_cross_encoder
from tests.embeddings.rerank_server import RerankServer, running_rerank_server
from tests.errors import raises

TEXTS = ["Gout hurts.", "Scurvy comes from want of vitamin C.", "Vitamin C is in oranges."]


@pytest.fixture
def server() -> Iterator[RerankServer]:
    with running_rerank_server() as running:
        yield running


def score(server: RerankServer, texts: list[str] = TEXTS, **settings: Any) -> list[float]:
    reranker = EndpointReranker(RerankSettings(model="m", url=server.url, **{"deadline": 20, **settings}))
    return reranker.score("vitamin c in oranges", texts)


def test_scores_are_matched_by_index(server: RerankServer) -> None:
    assert score(server) == [0, 2, 4]
    assert server.requests == [
        {"model": "m", "query": "vitamin c in oranges", "documents": TEXTS, "top_n": 3},
    ]
    assert score(server, []) == []
    assert len(server.requests) == 1


def test_long_and_empty_texts_are_sent(server: RerankServer) -> None:
    score(server, ["x" * 100_000, ""])
    assert [len(each) for each in server.requests[0]["documents"]] == [8_000, 1]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_texts_that_the_model_cannot_read_are_cut_off(server: RerankServer, status: int) -> None:
    answer, most = server.answer, 300

    def refuse(request: dict[str, Any]) -> tuple[int, Any]:
        lengths = [len(request["query"]) + len(each) for each in request["documents"]]
        return answer(request) if max(lengths) <= most else (status, {"error": "too long"})

    server.answer = refuse
    assert score(server, ["vitamin c " * 200, "gout"], attempts=1) == [2, 0]
    assert [len(request["documents"][0]) for request in server.requests] == [2000, 1000, 500, 250]
    assert {request["documents"][1] for request in server.requests} == {"gout"}
    most = 10
    with raises("embeddings.rerank-rejected", status, "too long"):
        score(server, ["vitamin c " * 200])


def test_a_query_that_the_model_cannot_read_is_cut_off(server: RerankServer) -> None:
    answer = server.answer
    server.answer = lambda request: answer(request) if len(request["query"]) <= 600 else (400, b"too long")
    reranker = EndpointReranker(RerankSettings(model="m", url=server.url, deadline=20))
    assert reranker.score("vitamin c " * 200, ["vitamin c", "gout"]) == [2, 0]


def test_the_key_comes_from_the_environment(server: RerankServer, monkeypatch: pytest.MonkeyPatch) -> None:
    score(server)
    monkeypatch.setenv("RERANK_API_KEY", "secret")
    score(server)
    assert server.keys == [None, "Bearer secret"]
    monkeypatch.setenv("RERANK_API_KEY", "two words")
    with raises("embeddings.malformed-rerank-key", "RERANK_API_KEY"):
        score(server)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"",
        {},
        {"results": []},
        {"results": [{"index": 0, "relevance_score": 1}, {"index": 1, "relevance_score": 1}]},
        {"results": [{"index": index, "relevance_score": 1} for index in (0, 1, 1, 2)]},
        {"results": [{"index": index, "relevance_score": 1} for index in (0, 1, 3)]},
        {"results": [{"index": index} for index in range(3)]},
        {"results": [{"index": index, "relevance_score": "inf"} for index in range(3)]},
        [1, 2, 3],
    ],
)
def test_an_invalid_response_is_reported(server: RerankServer, body: Any) -> None:
    server.answer = lambda _: (200, body)
    with raises("embeddings.invalid-rerank-scores", server.url):
        score(server)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "embeddings.rerank-denied"),
        (403, "embeddings.rerank-denied"),
        (404, "embeddings.rerank-rejected"),
        (422, "embeddings.rerank-rejected"),
    ],
)
def test_a_misconfiguration_is_not_retried(server: RerankServer, status: int, code: str) -> None:
    server.answer = lambda _: (status, {"error": "reason"})
    with raises(code, status, "reason"):
        score(server)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 503, 302])
def test_a_temporary_failure_is_retried(server: RerankServer, status: int) -> None:
    ready = server.answer
    server.answer = lambda request: ready(request) if len(server.requests) > 1 else (status, b"busy")
    assert score(server, attempts=2) == [0, 2, 4]
    server.answer = lambda _: (status, b"busy")
    with raises("embeddings.rerank-failed", status, "busy"):
        score(server, attempts=1)


def test_a_server_that_is_gone_is_reported() -> None:
    with running_rerank_server() as server:
        pass
    with raises("embeddings.rerank-failed", server.url):
        score(server, attempts=1)


def test_a_server_that_hangs_is_given_up(server: RerankServer) -> None:
    released = threading.Event()

    def hang(_: dict[str, Any]) -> tuple[int, bytes]:
        released.wait(60)
        return 200, b""

    server.answer = hang
    with raises("embeddings.rerank-timeout", "0.3 seconds"):
        score(server, deadline=0.3)
    released.set()


@pytest.mark.parametrize(
    "value", ["", "@http://a/rerank", "m@ftp://a/rerank", "m@a/rerank", "m@http://user:pass@a/rerank", "m@http://"]
)
def test_an_invalid_option_is_rejected(value: str) -> None:
    with raises("embeddings.invalid-reranker") as raised:
        parse_rerank_option(value)
    assert "pass@" not in raised.value.message


def test_the_option_names_a_model_and_an_address() -> None:
    assert parse_rerank_option("org/m") == RerankSettings(model="org/m")
    assert parse_rerank_option("m@http://a:1/v1/rerank") == RerankSettings(model="m", url="http://a:1/v1/rerank")


def test_a_cross_encoder_scores_pairs(tmp_path: Path) -> None:
    """Use a model with random weights: what counts is that it is loaded by its directory, and scores each text."""
    reranker = open_reranker(RerankSettings(model=str(write_cross_encoder(tmp_path)), candidates=2))
    first = reranker.score("vitamin c", ["gout", "vitamin c", "vitamin"])
    assert len(set(first)) == 3
    assert reranker.score("vitamin c", ["vitamin", "gout", "vitamin c"]) == pytest.approx(
        [first[2], first[0], first[1]]
    )
    assert reranker.score("vitamin c", []) == []
    with raises("sources.no-such-model-directory", "missing"):
        open_reranker(RerankSettings(model=str(tmp_path / "missing")))
