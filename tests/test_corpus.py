"""The kinds of corpus: what a new kind needs is a `Corpus` and a line in `CORPORA`."""

import io
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.source_files import list_files, read_files, split_source
from gumshoe.corpus import (
    CORPORA,
    Corpus,
    FoundSource,
    IngestResult,
    LookupResult,
    OpenedSource,
    QuestionScope,
    SourceEntry,
    find_corpus,
)
from gumshoe.environments.ingest import ingest_sources
from gumshoe.environments.registry import open_env
from gumshoe.scenarios.check import check_scenarios
from gumshoe.scenarios.sources import load_scenarios, read_scenarios
from tests.conftest import CommandResult
from tests.errors import raises
from tests.scenarios.questions import about_documents, ids, question, write_questions


class NotesCorpus(Corpus):
    """Notes, one per file, for `NotesEnvironment`."""

    environment = "tests.environments.own_environments:NotesEnvironment"
    audit = "tests.test_corpus:NotesAudit"
    content = "notes"
    example_source = "notes:s3://bucket/notes"
    index_command = "gumshoe notes index"

    def is_index(self, directory: Path) -> bool:
        return (directory / "notes.json").exists()

    def split_source(self, source: SourceEntry) -> tuple[str, str]:
        return split_source(self.require_uri(source), ("notes",), "notes", "notes:DIR")

    def check_source(self, source: SourceEntry) -> None:
        list_files(self.require_uri(source), self.split_source(source)[1])

    def check_options(self, options: Mapping[str, Any]) -> None:
        assert not options

    def open_search(
        self,
        directory: Path,
        inbox: str | None,  # noqa: ARG002
        collections: Any = None,  # noqa: ARG002
    ) -> "NotesSearch":
        return NotesSearch(directory)

    def ingest(
        self,
        sources: Sequence[SourceEntry],
        directory: Path,
        embedding: str,  # noqa: ARG002
        options: Mapping[str, Any],  # noqa: ARG002
    ) -> IngestResult:
        uri = self.require_uri(sources[0])
        directory.mkdir()
        for entry, text in read_files(*list_files(uri, self.split_source(uri)[1])[:2]):
            assert isinstance(text, bytes)
            (directory / entry.key).write_bytes(text)
        count = len(list(directory.iterdir()))
        (directory / "notes.json").write_text(json.dumps({"sources": [*sources]}))
        return IngestResult(count, f"{count} notes", {"sources": [*sources]})


class NotesSearch:
    def __init__(self, index: Path) -> None:
        self._index = index

    def search(self, words: Sequence[str]) -> list[FoundSource]:
        texts = {path.stem: path.read_text() for path in sorted(self._index.glob("*.txt"))}
        found = {name: text for name, text in texts.items() if all(each in text for each in words)}
        return [FoundSource(name, name, "", text) for name, text in found.items()]

    def read(self, source_id: str) -> OpenedSource:
        return OpenedSource((self._index / f"{source_id}.txt").read_text(), None)


class NotesAudit:
    def __init__(self, index: Path) -> None:
        self._index = index

    def look_up(self, source_id: str, question: QuestionScope) -> LookupResult:  # noqa: ARG002
        if (self._index / f"{source_id}.txt").exists():
            return LookupResult(source_id)
        return LookupResult(None, "note missing", "is not in the index")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory of two notes, while notes are a kind of corpus."""
    monkeypatch.setitem(CORPORA, "notes", "tests.test_corpus:NotesCorpus")
    directory = tmp_path / "notes"
    directory.mkdir()
    for name in ("d1", "d2"):
        (directory / f"{name}.txt").write_text(f"This is {name}.")
    return directory


def test_a_kind_of_corpus_is_ingested_opened_and_checked(notes: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    assert ingest_sources([f"notes:{notes}"], "notes", "none", index).count == 2
    world = open_env(index)
    assert (world.name, world.has_inboxes) == ("notes", False)
    assert [tool.__name__ for tool in world.list_tools()] == ["look_up"]
    lines = [about_documents(1), about_documents(9), question(2)]
    report = check_scenarios(read_scenarios(write_questions(tmp_path / "q.jsonl", lines)), index)
    assert [each.problem for each in report.findings] == ["note missing", "not about notes"]
    assert ids(report.clean) == ["d1"]


def test_questions_about_a_kind_of_corpus_are_written_from_a_search(
    notes: Path, tmp_path: Path, run: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    index, path = tmp_path / "index", tmp_path / "own.jsonl"
    ingest_sources([f"notes:{notes}"], "notes", "none", index)
    monkeypatch.setattr("sys.stdin", io.StringIO("This d2\n1\nWhich note is it?\nd2\n\n\nq\n"))
    assert run("scenarios", "add", path, "--index", index).status == 0
    (found,) = load_scenarios(str(path))
    assert (found.question, found.answer, found.document_ids) == ("Which note is it?", "d2", ("d2",))


def test_pipelines_accept_a_kind_of_corpus(notes: Path) -> None:
    from gumshoe_pipelines.run_arguments import check_arguments  # imports kfp

    given: dict[str, Any] = {"environment": "notes", "sources": ["notes:s3://bucket/notes"]}
    check_arguments(given, is_local=False)
    check_arguments({**given, "sources": [f"notes:{notes}"]}, is_local=True)
    for sources, is_local, code, value in (
        ([], False, "pipelines.no-sources", "notes:s3://bucket/notes"),
        (["dir:s3://bucket/notes"], False, "sources.unknown-form", "notes:DIR"),
        (["notes:here"], False, "pipelines.not-readable-from-pods", "here"),
        (
            [{"source": f"notes:{notes}", "owner": "ann@example.com"}],
            True,
            "sources.owner-not-allowed",
            "ann@example.com",
        ),
        ([f"notes:{notes}/none"], True, "sources.no-such-directory", f"{notes}/none"),
    ):
        with raises(code, value):
            check_arguments({**given, "sources": sources}, is_local=is_local)


def test_only_a_built_in_environment_has_a_corpus() -> None:
    assert find_corpus("tests.environments.own_environments:NotesEnvironment") is None
    assert {name: corpus.has_inboxes for name in CORPORA if (corpus := find_corpus(name))} == {
        "email": True,
        "documents": False,
    }


def test_importing_all_corpora_is_quick() -> None:
    code = """
import sys
from gumshoe.corpus import CORPORA, find_corpus
[find_corpus(name) for name in CORPORA]
print(*sorted({"apsw", "httpx", "kfp", "numpy", "orjson", "pydantic", "torch"} & sys.modules.keys()))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
