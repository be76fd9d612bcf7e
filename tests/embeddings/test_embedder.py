"""Embeddings: a real model without network, an endpoint over a real socket, and the cache."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gumshoe.embeddings.chunking import make_token_counter, split_text
from gumshoe.embeddings.embedder import (
    OFFLINE_MODEL,
    CachedEmbedder,
    Embedder,
    EmbeddingError,
    EndpointEmbedder,
    QueryEmbedder,
    SentenceEmbedder,
    Use,
    Vectors,
    open_embedder,
)
from tests.embeddings.word_vectors import WordVectors
from tests.errors import raises
from tests.inference import fake_vllm
from tests.inference.fake_vllm import FakeVLLM, RejectedError, altered, status


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    return open_embedder(OFFLINE_MODEL)


@pytest.mark.ci
def test_a_real_model_gives_similar_texts_similar_vectors(minilm: Embedder) -> None:
    texts = ["The invoice is due on Friday.", "Payment must be made by Friday.", "Penguins live in the south."]
    found = minilm.embed(texts, "similarity")
    assert found.shape == (3, 384)
    assert found.dtype == np.float32
    assert np.linalg.norm(found, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
    alike, unlike = float(found[0] @ found[1]), float(found[0] @ found[2])
    assert alike > unlike + 0.3
    assert minilm.embed([], "query").shape[0] == 0


@pytest.mark.ci
def test_a_batch_gives_the_same_vectors_as_single_texts(minilm: Embedder) -> None:
    texts = [f"Message {number} is about {'mail ' * (number % 7)}" for number in range(150)]
    together = minilm.embed(texts, "passage")
    for number in (0, 63, 64, 149):
        assert together[number] == pytest.approx(minilm.embed([texts[number]], "passage")[0], abs=1e-5)


class Recorder:
    """Records what a model of sentence-transformers is given."""

    def __init__(self, prompts: dict[str, str] | None) -> None:
        self.prompts = prompts

    def encode(self, texts: list[str], *, prompt: str | None, **_: Any) -> Any:
        self.given = [(prompt or "") + text for text in texts]
        return np.ones((len(texts), 2), np.float32)


@pytest.mark.parametrize(
    ("name", "prompts", "expected"),
    [
        ("intfloat/e5-base-v2", None, ("query: a", "passage: a", "query: a")),
        ("intfloat/multilingual-e5-large", None, ("query: a", "passage: a", "query: a")),
        ("models/e5_small", {"query": "other: "}, ("query: a", "passage: a", "query: a")),
        ("intfloat/multilingual-e5-large-instruct", None, ("a", "a", "a")),
        ("home/e5-user/all-minilm", None, ("a", "a", "a")),
        ("somebody/grape5-base", None, ("a", "a", "a")),
        ("somebody/own", {"query": "Q: ", "document": "D: ", "STS": "S: "}, ("Q: a", "D: a", "S: a")),
        ("somebody/own", {"query": "Q: ", "passage": "P: "}, ("Q: a", "P: a", "a")),
    ],
)
def test_a_model_gets_the_prefixes_it_was_trained_with(
    name: str, prompts: dict[str, str] | None, expected: tuple[str, str, str]
) -> None:
    embedder = SentenceEmbedder.__new__(SentenceEmbedder)  # without a model, which takes seconds to load
    embedder._model, embedder._family = Recorder(prompts), Path(name).name
    uses: tuple[Use, ...] = ("query", "passage", "similarity")
    given = []
    for use in uses:
        embedder._encode(["a"], use, 1)
        given += embedder._model.given
    assert tuple(given) == expected


def test_a_missing_model_is_reported(tmp_path: Path) -> None:
    with raises("sources.no-such-model-directory", tmp_path / "none"):
        open_embedder(str(tmp_path / "none"))


@pytest.mark.ci
def test_a_directory_without_a_model_is_reported(tmp_path: Path) -> None:
    with raises("embeddings.model-not-loaded", tmp_path):
        open_embedder(str(tmp_path))


@pytest.fixture
def static_model(tmp_path: Path) -> Path:
    """Make a static model, whose tokenizer cuts texts after three tokens."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = ["[UNK]", "the", "invoice", "is", "due", "penguins", "live", "in", "south"]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_truncation(3)
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)]).save(str(tmp_path / "static"))
    return tmp_path / "static"


@pytest.mark.ci
def test_a_static_model_reads_texts_of_any_length(static_model: Path) -> None:
    embedder = SentenceEmbedder(static_model)
    texts = ["the invoice is due", "the invoice is", ""]
    assert embedder.count_tokens(texts, "passage") == [4, 3, 0]
    assert embedder.max_tokens > 1_000_000
    found = embedder.embed(texts, "passage")
    assert found.shape == (3, 8)
    assert not np.allclose(found[0], found[1])
    chunks = split_text("the invoice is due. penguins live in the south.", [], 6, make_token_counter(embedder)).chunks
    assert [each.tokens for each in chunks] == [5, 6]


@pytest.mark.ci
def test_a_model_whose_tokens_cannot_be_counted_is_refused(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, WordEmbeddings
    from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

    words = WordEmbeddings(WhitespaceTokenizer(["invoice"]), np.ones((1, 4)))
    SentenceTransformer(modules=[words, Pooling(4)]).save(str(tmp_path / "words"))
    with raises("embeddings.unknown-tokenizer", tmp_path / "words", "WhitespaceTokenizer"):
        SentenceEmbedder(tmp_path / "words")


def embed(server: FakeVLLM, *texts: str, model: str = "base", use: Use = "query", **options: Any) -> Vectors:
    """Embed texts with an endpoint."""
    with closing(EndpointEmbedder(model, f"{server.address}/v1", **options)) as embedder:
        return embedder.embed(texts, use)


def test_an_endpoint_gets_batches_and_its_vectors_are_sorted() -> None:
    def reverse(request: dict[str, Any]) -> dict[str, Any]:
        answer = fake_vllm.letter_counts(request)
        answer["data"].reverse()
        return answer

    with FakeVLLM(embeddings=reverse) as server:
        with closing(open_embedder(f"openai:base@{server.address}/v1")) as embedder:
            found = embedder.embed([chr(97 + number % 26) for number in range(600)], "passage")
        sizes = [len(request["input"]) for request in server.requests]
    assert found.argmax(axis=1).tolist() == [number % 26 for number in range(600)]
    assert sum(sizes) == 600
    assert max(sizes) <= 256


def test_an_e5_model_behind_an_endpoint_gets_its_prefixes() -> None:
    with FakeVLLM(models=("intfloat/e5-base-v2",)) as server:
        embed(server, "a", model="intfloat/e5-base-v2", use="passage")
        assert server.requests[0]["input"] == ["passage: a"]


def drop_one(answer: dict[str, Any]) -> None:
    answer["data"].pop()


def repeat_one(answer: dict[str, Any]) -> None:
    answer["data"][1]["index"] = 0


def empty_one(answer: dict[str, Any]) -> None:
    answer["data"][0]["embedding"] = [0.0] * 26


def shorter_one(answer: dict[str, Any]) -> None:
    answer["data"][0]["embedding"] = [1.0]


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (fake_vllm.cut_json, "embeddings.invalid-response"),
        (fake_vllm.raw(b"<html>", "text/html"), "embeddings.invalid-response"),
        (altered(drop_one), "embeddings.invalid-response"),
        (altered(repeat_one), "embeddings.invalid-response"),
        (altered(empty_one), "embeddings.invalid-vectors"),
        (altered(shorter_one), "embeddings.invalid-vectors"),
        (status(500), "embeddings.endpoint-failed"),
        (fake_vllm.reset, "embeddings.unreachable"),
    ],
)
def test_unusable_vectors_are_an_error(act: fake_vllm.Act, code: str) -> None:
    with FakeVLLM() as server:
        server.inject(act, times=None)
        with raises(code, f"base@{server.address}/v1") as raised:
            embed(server, "ab", "cd", attempts=1)
        assert raised.value.exit_status == 75


def limited(texts: int, characters: int, code: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return embeddings that reject requests with more texts, or with a longer one."""

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if len(request["input"]) > texts or max(map(len, request["input"])) > characters:
            error = RejectedError("the batch or an input is too large")
            error.status = code
            raise error
        return fake_vllm.letter_counts(request)

    return answer


def test_a_server_that_takes_fewer_texts_gets_fewer() -> None:
    with FakeVLLM(embeddings=limited(10, 1_000, 413)) as server:
        with closing(EndpointEmbedder("base", f"{server.address}/v1")) as embedder:
            first = embedder.embed([chr(97 + number % 26) for number in range(300)], "passage")
            rejected = sum(len(each["input"]) > 10 for each in server.requests)
            server.requests.clear()
            embedder.embed(["a"] * 20, "passage")
        assert [len(each["input"]) for each in server.requests] == [8, 8, 4]
    assert rejected == 5  # 256, 128, 64, 32, 16
    assert first.argmax(axis=1).tolist() == [number % 26 for number in range(300)]


def test_a_text_that_is_too_long_for_the_model_is_cut_off_alone() -> None:
    texts = ["b" * 100] * 200 + ["a" * 600 + "c" * 4_000] + ["b" * 100] * 55
    with FakeVLLM(embeddings=limited(256, 700, 400)) as server:
        with closing(EndpointEmbedder("base", f"{server.address}/v1")) as embedder:
            found = embedder.embed(texts, "passage")
            assert found.argmax(axis=1).tolist() == [1] * 200 + [0] + [1] * 55
            accepted = [len(text) for each in server.requests for text in each["input"] if text[0] == "a"]
            assert accepted[-4:] == [4600, 2300, 1150, 575]
            embedder.embed(["b"] * 256, "passage")
        assert len(server.requests[-1]["input"]) == 256  # the number of texts was not the reason


def test_a_server_that_rejects_even_a_short_text_is_misconfigured() -> None:
    with FakeVLLM(embeddings=limited(0, 0, 422)) as server:
        with raises("embeddings.rejected", f"base@{server.address}/v1", "the batch or an input is too large") as raised:
            embed(server, "a" * 5_000, "b")
        assert raised.value.exit_status == 2
        assert [len(each["input"][0]) for each in server.requests] == [5000, 5000, 2500, 1250, 625, 312, 250]


@pytest.mark.parametrize("act", [fake_vllm.reset, status(429), status(500)])
def test_a_temporary_fault_is_retried(act: fake_vllm.Act, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    with FakeVLLM() as server:
        server.inject(act)
        assert embed(server, "ab").shape == (1, 26)


def test_a_silent_endpoint_and_an_unknown_model_are_reported() -> None:
    with FakeVLLM() as server:
        for act in (fake_vllm.stall, fake_vllm.trickle):
            server.inject(act)
            with raises("embeddings.timeout", "0.2 seconds"):
                embed(server, "a", deadline=0.2, attempts=1)  # neither answers in seconds
        with raises("models.not-found", "other@"):
            embed(server, "a", model="other")


def test_openai_requires_an_api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with raises("models.no-api-key", "OPENAI_API_KEY"):
        open_embedder("openai:text-embedding-3-small")


def test_each_text_is_embedded_once_per_use(tmp_path: Path) -> None:
    cache = tmp_path / "vectors.sqlite"
    with FakeVLLM() as server:
        word = f"openai:base@{server.address}/v1"
        with closing(open_embedder(word, cache)) as embedder:
            first = embedder.embed(["ab", "cd", "ab"], "query")
        assert server.requests[0]["input"] == ["ab", "cd"]
        again = open_embedder(word, cache)
        assert isinstance(again, CachedEmbedder)
        assert again.embed(["cd", "ab", "ef"], "query")[:2] == pytest.approx(first[[1, 0]])
        assert server.requests[1]["input"] == ["ef"]
        again.embed(["ab"], "passage")
        assert len(server.requests) == 3
        assert again.embed([], "query").shape[0] == 0
        again.close()


class Slow(WordVectors):
    """Block in the first batch until released, and fail on request."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on, self.fails = threading.Event(), threading.Event(), False

    def embed(self, texts, use):  # type: ignore[no-untyped-def]
        self.begun.set()
        assert self.go_on.wait(20)
        if self.fails:
            self.asked.append(list(texts))
            raise EmbeddingError("embeddings.unreachable", "of the test")
        return super().embed(texts, use)


def test_waiting_queries_are_embedded_in_one_batch() -> None:
    model = Slow()
    vectors = QueryEmbedder(model)
    with ThreadPoolExecutor(40) as pool:
        first = pool.submit(vectors.embed, "first")
        assert model.begun.wait(20)
        others = [pool.submit(vectors.embed, f"query {number % 10}") for number in range(30)]
        while len(vectors._waiting) < 10:
            threading.Event().wait(0.01)
        model.go_on.set()
        assert np.array_equal(first.result(20), WordVectors().embed(["first"], "query")[0])
        for number, other in enumerate(others):
            assert np.array_equal(other.result(20), WordVectors().embed([f"query {number % 10}"], "query")[0])
    assert [len(batch) for batch in model.asked] == [1, 10]
    vectors.embed("query 3")
    assert len(model.asked) == 2


def test_a_failure_reaches_all_waiting_threads_and_is_not_cached() -> None:
    model = Slow()
    model.fails = True
    vectors = QueryEmbedder(model)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(vectors.embed, f"query {number % 2}") for number in range(8)]
        model.go_on.set()
        for each in waiting:
            with raises("embeddings.unreachable"):
                each.result(20)
    model.fails = False
    assert vectors.embed("query 0").shape == (model.dimensions,)
