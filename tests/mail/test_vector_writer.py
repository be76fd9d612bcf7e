"""Vectors of an index: chunks of messages, builds that resume, and extensions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gumshoe.mail.build import build_mail_index, extend_mail_index
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.index import MailIndex
from gumshoe.mail.message import Attachment
from gumshoe.mail.segment import StoredText
from gumshoe.mail.vector_writer import MAX_CHUNKS, embed_segments
from tests.embeddings.word_vectors import FailingVectors, ShortVectors, WordVectors
from tests.errors import raises
from tests.mail.mailbox import KEEP_ALL, record, write_jsonl

DENSE = replace(KEEP_ALL, embedding="word-vectors")
BOB = "bob@example.com"
MANY = 1100  # messages: more than one of the windows from which a killed build resumes


def read_vectors(directory: Path) -> dict[str, bytes]:
    """Return the content of all files with vectors."""
    names = {"chunks.i4", "vectors.f2", "signs.u8", "center.f4"}
    return {str(each.relative_to(directory)): each.read_bytes() for each in directory.rglob("*") if each.name in names}


def list_embedded(embedder: WordVectors) -> list[str]:
    return [text for texts in embedder.asked for text in texts]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    """Return a source of many messages, and the vectors of an index that was built without interruption."""
    place = tmp_path_factory.mktemp("many")
    source = write_jsonl(place / "mail.jsonl", [record(number) for number in range(MANY)])
    build_mail_index([source], place / "index", DENSE, embedder=WordVectors())
    return source, read_vectors(place / "index")


def test_an_interrupted_build_resumes_with_identical_results(
    many: tuple[str, dict[str, bytes]], tmp_path: Path
) -> None:
    source, whole = many
    assert {Path(name).name for name in whole} == {"chunks.i4", "vectors.f2", "signs.u8", "center.f4"}
    with raises("embeddings.unreachable"):
        build_mail_index([source], tmp_path / "index", DENSE, embedder=FailingVectors())
    with raises("mail.no-index"):
        MailIndex(tmp_path / "index")
    again = WordVectors()
    build_mail_index([source], tmp_path / "index", DENSE, embedder=again)
    assert sum(text.startswith("Subject") for text in list_embedded(again)) == MANY - 1024
    assert read_vectors(tmp_path / "index") == whole
    assert not (tmp_path / "index" / ".partial").exists()
    assert not list(tmp_path.rglob("vectors.plan"))


@pytest.mark.ci
@pytest.mark.parametrize("is_synced", [False, True])
def test_a_build_of_a_source_that_has_changed_keeps_the_vectors_of_unchanged_texts(
    tmp_path: Path, is_synced: bool
) -> None:
    """It is interrupted twice, the second time before it has embedded anything."""
    place, path = tmp_path / "index", tmp_path / "mail.jsonl"
    if is_synced:
        build_mail_index([write_jsonl(path, [record(MANY)])], place, DENSE, embedder=WordVectors())

    def build(first: int, last: int, embedder: WordVectors) -> None:
        source = write_jsonl(path, [record(number) for number in range(first, last)])
        if is_synced:
            extend_mail_index([source], place, sync=True, allow_missing=True, embedder=embedder)
        else:
            build_mail_index([source], place, DENSE, embedder=embedder)

    with raises("embeddings.unreachable"):
        build(0, MANY, FailingVectors(calls=1 + is_synced))
    with raises("embeddings.unreachable"):
        build(1, MANY, FailingVectors(calls=is_synced))
    build(1, MANY + 1, again := WordVectors())
    new = [text for text in list_embedded(again) if text.startswith("Subject")]
    assert len(new) == MANY - 1024 + 1  # the new one, or one to check the model
    assert not (place / ".partial").exists()
    whole = tmp_path / "whole"
    build_mail_index([f"jsonl:{path}"], whole, DENSE, embedder=WordVectors())
    assert MailIndex(place).stats()["content"] == MailIndex(whole).stats()["content"]
    if not is_synced:
        assert read_vectors(place) == read_vectors(whole)


def test_a_build_with_another_model_does_not_resume(many: tuple[str, dict[str, bytes]], tmp_path: Path) -> None:
    source, whole = many
    with raises("embeddings.unreachable"):
        build_mail_index([source], tmp_path / "index", DENSE, embedder=FailingVectors("other"))
    build_mail_index([source], tmp_path / "index", DENSE, embedder=WordVectors())
    assert read_vectors(tmp_path / "index") == whole


def test_an_extension_embeds_new_messages_only(tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "first.jsonl", [record(1), record(2, to=[BOB, "carol@example.com"])])
    build_mail_index([first], tmp_path / "index", DENSE, embedder=(embedder := WordVectors()))
    assert list_embedded(embedder)[:2] == [f"Subject {n}\nBody of message {n}" for n in (1, 2)]
    more = write_jsonl(tmp_path / "more.jsonl", [record(2, to=["eve@example.com"]), record(3)])
    extend_mail_index([more], tmp_path / "index", embedder=(embedder := WordVectors()))
    new = [text for text in list_embedded(embedder) if text.startswith("Subject")]
    assert sorted(new) == ["Subject 1\nBody of message 1", "Subject 3\nBody of message 3"]  # 1 to check the model
    index = MailIndex(tmp_path / "index", WordVectors())
    assert index.stats()["vectors"] == 3
    (hit,) = index.search_by_meaning("eve@example.com", "message 2")
    assert (hit.message_id, hit.dense_rank) == ("<2@example.com>", 1)


def test_merged_segments_keep_their_vectors(tmp_path: Path) -> None:
    records = [record(number, body=f"Body {number % 4} of {number}") for number in range(12)]
    for number, each in enumerate(records):
        source = write_jsonl(tmp_path / f"{number}.jsonl", [each])
        if number:
            extend_mail_index([source], tmp_path / "index", embedder=(embedder := WordVectors()))
            assert sum(text.startswith("Subject") for text in list_embedded(embedder)) == 2  # one to check the model
        else:
            build_mail_index([source], tmp_path / "index", DENSE, embedder=WordVectors())
    extend_mail_index([], tmp_path / "index", remove=["3@example.com"], embedder=WordVectors())
    merged = MailIndex(tmp_path / "index", WordVectors())
    assert merged.stats()["segments"] < len(records)
    at_once = write_jsonl(tmp_path / "all.jsonl", [each for number, each in enumerate(records) if number != 3])
    build_mail_index([at_once], tmp_path / "whole", DENSE, embedder=WordVectors())
    whole = MailIndex(tmp_path / "whole", WordVectors())
    for query in ("body 2", "subject 7", "5 of 9"):
        assert merged.search_by_meaning(BOB, query) == whole.search_by_meaning(BOB, query)


def test_the_options_decide_whether_there_are_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_jsonl(tmp_path / "mail.jsonl", [record(1)])
    opened: list[str] = []

    def open_embedder(name: str) -> WordVectors:
        opened.append(name)
        return WordVectors(name)

    monkeypatch.setattr("gumshoe.mail.build.open_embedder", open_embedder)
    contents = []
    for options in (KEEP_ALL, DENSE, replace(DENSE, embedding="other")):
        place = tmp_path / options.embedding
        contents.append(build_mail_index([source], place, options).content)
        extend_mail_index([write_jsonl(tmp_path / "more.jsonl", [record(2)])], place)
        facts = MailIndex(place).stats()
        assert facts["options"]["embedding"] == options.embedding
        assert (facts["vectors"], facts["dimensions"]) == ((0, 0) if options is KEEP_ALL else (2, 96))
    assert opened == ["word-vectors", "word-vectors", "other", "other"]
    assert len(set(contents)) == 3


def test_a_model_that_does_not_exist_is_reported_before_reading(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "mail.jsonl", [record(1)])
    with raises("sources.no-such-model-directory", "./no-such-model"):
        build_mail_index([source], tmp_path / "index", MailBuildOptions(embedding="./no-such-model"))
    assert not list(tmp_path.glob("index/*"))


# Chunks


class StoredSegment:
    """The messages of a segment, without a database."""

    first = 7

    def __init__(self, directory: Path, *texts: StoredText) -> None:
        self.directory, self._texts, self.messages = directory, texts, len(texts)

    def execute(self, _: str) -> Any:
        return iter([(self.first + number,) for number in range(self.messages)])

    def read_text(self, number: int) -> StoredText:
        return self._texts[number - self.first]


def split(tmp_path: Path, *texts: StoredText) -> list[str]:
    """Return the texts of the chunks of some messages."""
    embedder = ShortVectors()
    embed_segments([StoredSegment(tmp_path, *texts)], embedder)  # type: ignore[list-item]
    return list_embedded(embedder)[: (tmp_path / "chunks.i4").stat().st_size // 20]


def test_body_and_attachments_are_split_below_the_subject(tmp_path: Path) -> None:
    body = "It leaks near the wall. The rain comes in. Call the roofer tomorrow, please."
    sheet = Attachment("plan.txt", "Tiles and nails.", "")
    empty = Attachment("photo.jpg", "", "not read")
    assert split(tmp_path, StoredText("ann@example.com", "The  roof", body, [sheet, empty])) == [
        "The roof\nIt leaks near the wall. The rain comes in.",
        "The roof\nCall the roofer tomorrow, please.",
        "The roof | plan.txt\nTiles and nails.",
    ]


def test_a_message_without_a_body_has_its_subject(tmp_path: Path) -> None:
    empty = StoredText("ann@example.com", "", "", [])
    assert split(tmp_path, StoredText("ann@example.com", "Call me", " \n", []), empty) == ["Call me\n"]


def test_messages_without_any_text_have_no_vectors(tmp_path: Path) -> None:
    assert split(tmp_path, StoredText("ann@example.com", "", "", [])) == []
    assert [each.name for each in tmp_path.iterdir()] == ["chunks.i4"]


def test_the_chunks_of_a_message_are_limited(tmp_path: Path) -> None:
    text = StoredText("ann@example.com", "Long", "One two three four five six seven. " * 2 * MAX_CHUNKS, [])
    assert len(split(tmp_path, text)) == MAX_CHUNKS
