"""`gumshoe erase`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumshoe.errors import RefusedError, UsageError
from gumshoe.terminal import JsonFlag, create_table, err, out, print_json, printable

if TYPE_CHECKING:
    from gumshoe.erasure.receipt import ErasedPlace
    from gumshoe.erasure.target import EraseTarget

app = typer.Typer(add_completion=False)


@app.command(
    epilog="""
    gumshoe erase index outputs --inbox ann@example.com
    gumshoe erase index --store s3://bucket/project --inbox ann@example.com --yes
    gumshoe erase index --message "<1@example.com>" --yes
    """
)
def erase(
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PLACE...",
            help="Directories and files on this machine: indexes, scenarios, evaluations, runs, outputs of pipelines.",
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", envvar="GUMSHOE_STORE", metavar="URI", help="Artifact store to erase from as well."),
    ] = None,
    inbox: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Erase this inbox, and questions and episodes about it.")
    ] = None,
    everywhere: Annotated[
        bool,
        typer.Option(
            "--everywhere",
            help="With --inbox, also erase all messages from and to this person, and all records with the address.",
        ),
    ] = False,
    message: Annotated[
        str | None, typer.Option(metavar="ID", help="Erase the message with this id from all inboxes.")
    ] = None,
    document: Annotated[str | None, typer.Option(metavar="ID", help="Erase the document with this id.")] = None,
    collection: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --document, only the document of this collection.")
    ] = None,
    receipt: Annotated[
        Path,
        typer.Option(metavar="FILE", help="Receipt to write, without the erased name. An earlier one is continued."),
    ] = Path("erasure-receipt.json"),
    keep_caches: Annotated[
        bool, typer.Option("--keep-caches", help="Keep the caches of judges, embeddings and web pages on this machine.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Erase it. Without it, only list what would be erased.")] = False,
    json: JsonFlag = False,
) -> None:
    """Erase an inbox, a message or a document from indexes, files and a store.

    Artifacts are replaced by redacted successors. Adapters that were trained on erased questions are named: their
    weights cannot be edited. An interrupted erasure can be run again. Exits with 3 if something is left.
    """
    from gumshoe.artifacts.store import Store
    from gumshoe.erasure.erase import Erasure, open_scratch
    from gumshoe.erasure.receipt import Receipt

    target = _parse_target(inbox, message, document, collection, everywhere=everywhere)
    with open_scratch() as scratch:
        opened = Store(store) if store else None
        erasure = Erasure(target, places or [], opened, keep_caches=keep_caches, scratch=scratch)
        written = Receipt.open(receipt, target)
        plan = erasure.plan(written)
        outdated = plan.list_outdated(target)
        if not yes:
            adapters, remaining = plan.list_adapters(target), plan.list_remaining(target)
            _print_result(plan.list_erased(target), adapters, remaining, outdated, json=json, is_dry_run=True)
            return
        erasure.run(plan, written, lambda: written.write(receipt))
        remaining = erasure.verify()
    written.finish(remaining)
    written.write(receipt)
    _print_result(written.erased, written.adapters, remaining, outdated, json=json, is_dry_run=False)
    if not json:
        out.print(f"Receipt: {printable(receipt)}", soft_wrap=True)
    if remaining:
        raise RefusedError(
            "erasure.incomplete",
            f"{len(remaining)} places still contain it or cannot be read, e.g. {remaining[0]}; delete them by hand "
            "(artifacts with `gumshoe artifacts remove`), or make them readable, and run the command again",
        )


def _parse_target(
    inbox: str | None, message: str | None, document: str | None, collection: str | None, *, everywhere: bool
) -> "EraseTarget":
    from gumshoe.erasure.target import EraseTarget, TargetKind

    given: dict[TargetKind, str | None] = {"inbox": inbox, "message": message, "document": document}
    named = {kind: name for kind, name in given.items() if name is not None}
    if len(named) != 1:
        raise UsageError("erasure.unclear-target", "set exactly one of --inbox, --message and --document")
    ((kind, name),) = named.items()
    return EraseTarget(kind, name, everywhere, collection)


def _print_result(
    erased: "list[ErasedPlace]",
    adapters: dict[str, str],
    remaining: list[str],
    outdated: list[str],
    *,
    json: bool,
    is_dry_run: bool,
) -> None:
    """Print the result. `outdated` are those of the remaining places with an index of another version of Gumshoe."""
    if json:
        content: dict[str, Any] = {"dry_run": is_dry_run, "erased": [each.model_dump() for each in erased]}
        print_json({**content, "adapters": adapters, "remaining": remaining})
        return
    table = create_table("would erase" if is_dry_run else "erased", "kind", "items", box=None)
    for each in erased:
        successor = f" -> {each.successor}" if each.successor else ""
        table.add_row(printable(each.place) + successor, each.kind, f"{each.count:,}")
    if erased:
        out.print(table)
    else:
        out.print("Nothing to erase was found.")
    for each in erased:
        if each.lost:
            err.print(
                f"[yellow]{printable(each.successor or each.place)}[/]: {each.lost:,} passages of other documents had "
                "been left out as near duplicates of erased ones, and are missing; build the index again to find them "
                "by meaning.",
                soft_wrap=True,
            )
    for name, reason in adapters.items():
        err.print(
            f"[yellow]{printable(name)}[/] may have learned from it ({printable(reason)}). Weights cannot be edited: "
            "train the adapter again without it, and delete this one (in a store: `gumshoe artifacts remove`).",
            soft_wrap=True,
        )
    for name in remaining:
        why = "contains it and cannot be changed, or cannot be read."
        if name in outdated:
            why = (
                "has an index that another version of Gumshoe built, and may contain it. Build the index again from "
                "sources without it, and delete this one (in a store: `gumshoe artifacts remove`)."
            )
        err.print(f"[red]{printable(name)}[/] {why}", soft_wrap=True)
    if is_dry_run and erased:
        out.print("Nothing was erased yet; add --yes to erase it.")
