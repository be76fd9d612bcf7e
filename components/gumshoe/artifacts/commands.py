"""`gumshoe artifacts`: publish, fetch, list, show, verify, prune and remove."""

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gumshoe.errors import RefusedError, UsageError
from gumshoe.terminal import JsonFlag, create_table, err, out, print_json, print_list, printable

if TYPE_CHECKING:
    from rich.tree import Tree

    from gumshoe.artifacts.store import ArtifactLineage, Store

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Publish, fetch, list, verify and delete artifacts.")

SIX_HOURS = 6 * 3600.0
_REFERENCES = ("*/*/manifest.json", "runs/*/*/*/manifest.json")


def _complete_reference(context: typer.Context) -> list[str]:
    """Return the artifacts in a store on this machine; listing one on S3 would take too long."""
    uri = context.params.get("store") or os.environ.get("GUMSHOE_STORE", "")
    root = Path(uri.removeprefix("file://"))
    if not uri or "://" in uri.removeprefix("file://") or not root.is_dir():
        return []
    found = [each.parent.relative_to(root) for pattern in _REFERENCES for each in root.glob(pattern)]
    return sorted({str(each) for each in found} | {f"{each.parent}/latest" for each in found})


def _complete_kind(context: typer.Context) -> list[str]:
    return sorted({each.rpartition("/")[0] for each in _complete_reference(context)})


StoreUri = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="GUMSHOE_STORE",
        metavar="URI",
        help="Artifact store: s3://BUCKET/PREFIX, file:///DIR or a path. S3 credentials come from the usual AWS "
        "settings; AWS_ENDPOINT_URL selects another server.",
    ),
]
Reference = Annotated[
    str,
    typer.Argument(metavar="KIND/VERSION", autocompletion=_complete_reference, help="Artifact, e.g. adapters/latest."),
]
DeadlineOption = Annotated[
    float,
    typer.Option("--deadline", min=0.0001, metavar="SECONDS", help="Time limit for the whole operation, in seconds."),
]


def _store(uri: str, deadline: float = SIX_HOURS) -> "Store":
    from gumshoe.artifacts.storage import Limits
    from gumshoe.artifacts.store import Store

    return Store(uri, Limits(deadline=deadline))


@app.command(
    epilog="""
    gumshoe artifacts publish outputs/run/best_model --store s3://bucket/project \\
      --kind adapters --version v1
    """
)
def publish(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory whose files become the artifact.")],
    store: StoreUri,
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND", autocompletion=_complete_kind, help="Kind of artifact, e.g. adapters or mail-indexes."
        ),
    ],
    version: Annotated[
        str, typer.Option(metavar="VERSION", help="Version to publish as. Each version can be used only once.")
    ],
    made_from: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND/VERSION",
            autocompletion=_complete_reference,
            help="Artifact that this one was made from (repeatable).",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Setting to record in the manifest (repeatable).")
    ] = None,
    image: Annotated[str | None, typer.Option(envvar="GUMSHOE_IMAGE", help="Container image to record.")] = None,
    latest: Annotated[bool, typer.Option(help="Make KIND/latest refer to this version.")] = True,
    deadline: DeadlineOption = SIX_HOURS,
    json: JsonFlag = False,
) -> None:
    """Publish a directory as an artifact: upload its files, then make them visible with one final write.

    An interrupted publication resumes where it stopped. Publishing the same content again changes nothing.
    """
    pairs = [text.partition("=") for text in setting or ()]
    if wrong := [text for text, pair in zip(setting or (), pairs, strict=True) if not pair[0] or not pair[1]]:
        raise UsageError("artifacts.invalid-setting", f"--setting must be NAME=VALUE, got {wrong[0]!r}")
    settings = {name: value for name, _, value in pairs}
    published = _store(store, deadline).publish(
        directory, kind, version, made_from=made_from or (), settings=settings, image=image, latest=latest
    )
    if json:
        print_json({"created": published.created, "manifest": published.manifest.model_dump(mode="json")})
        return
    manifest = published.manifest
    verb = "Published" if published.created else "Already published:"
    out.print(f"{verb} [bold]{manifest.reference}[/], {len(manifest.files)} files, {_format_size(manifest.size)}")


@app.command(epilog="gumshoe artifacts fetch adapters/latest --store s3://bucket/project --out v1")
def fetch(
    reference: Reference,
    store: StoreUri,
    directory: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory to fetch into. An interrupted fetch is resumed.")
    ],
    deadline: DeadlineOption = SIX_HOURS,
    json: JsonFlag = False,
) -> None:
    """Fetch an artifact, verify every byte, and show it completely or not at all."""
    fetched = _store(store, deadline).fetch(reference, directory)
    if json:
        print_json(
            {
                "reference": fetched.manifest.reference,
                "directory": str(fetched.directory),
                "downloaded_bytes": fetched.downloaded,
            }
        )
        return
    amount = f"{_format_size(fetched.downloaded)} downloaded" if fetched.downloaded else "nothing to download"
    out.print(
        f"[bold]{fetched.manifest.reference}[/] is in {printable(fetched.directory)}, verified; {amount}",
        soft_wrap=True,
    )


@app.command("list")
def list_(
    store: StoreUri,
    kind: Annotated[
        str | None, typer.Argument(metavar="KIND", autocompletion=_complete_kind, help="List only this kind.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """List published artifacts, oldest first."""
    opened = _store(store)
    manifests = opened.list(kind)
    if json:
        print_json([manifest.model_dump(mode="json") for manifest in manifests])
        return
    if not manifests:
        err.print(f"{printable(opened.uri)} contains no {kind or 'artifacts'}.", soft_wrap=True)
        return
    newest = {each: opened.latest(each) for each in {manifest.kind for manifest in manifests}}
    table = create_table("artifact", "created (UTC)", "files", "size", "made from", box=None)
    for manifest in manifests:
        mark = " [green](latest)[/]" if newest[manifest.kind] == manifest.version else ""
        table.add_row(
            manifest.reference + mark,
            f"{manifest.created:%Y-%m-%d %H:%M:%S}",
            str(len(manifest.files)),
            _format_size(manifest.size),
            ", ".join(manifest.made_from),
        )
    print_list(table)


@app.command()
def show(reference: Reference, store: StoreUri, json: JsonFlag = False) -> None:
    """Show an artifact: its files, its settings, and a tree of the artifacts that it was made from."""
    opened = _store(store)
    manifest = opened.manifest(reference)
    lineage = opened.lineage(manifest.reference)
    if json:
        print_json({"manifest": manifest.model_dump(mode="json"), "lineage": _lineage_to_json(lineage)})
        return
    facts = create_table("", "", box=None, show_header=False)
    facts.add_row("created", f"{manifest.created:%Y-%m-%d %H:%M:%S} UTC")
    facts.add_row("content", manifest.content)
    facts.add_row("code", printable(manifest.code or "unknown"))
    facts.add_row("image", printable(manifest.image or "none"))
    for name, value in manifest.settings.items():
        facts.add_row(f"setting {printable(name)}", printable(value))
    files = create_table("file", "size", "sha256", box=None)
    for entry in manifest.files:
        files.add_row(printable(entry.path), _format_size(entry.size), entry.sha256)
    out.print(f"[bold]{manifest.reference}[/]", facts, sep="\n")
    out.print(
        f" files at\n{printable(opened.uri)}/{manifest.reference}/{manifest.data}/", soft_wrap=True
    )  # for copying
    out.print(files)
    out.print(_lineage_to_tree(lineage))


@app.command()
def verify(
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND/VERSION", autocompletion=_complete_reference, help="Published artifact to verify."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", envvar="GUMSHOE_STORE", metavar="URI", help="Store in which to verify KIND/VERSION."),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Directory of a fetched artifact to verify instead.")
    ] = None,
    deadline: DeadlineOption = SIX_HOURS,
    json: JsonFlag = False,
) -> None:
    """Verify every byte of a published or a fetched artifact. Exits with 3 if it is damaged."""
    from gumshoe.artifacts.store import verify_directory

    if directory is not None and reference is None:
        manifest, faults = verify_directory(directory)
        name = f"{manifest.reference} in {directory}"
    elif reference is not None and store is not None and directory is None:
        faults = _store(store, deadline).verify(reference)
        name = reference
    else:
        raise UsageError(
            "artifacts.unclear-target", "name either a published artifact (KIND/VERSION and --store) or --dir alone"
        )
    if json:
        print_json({"artifact": name, "damaged": faults})
    for path, reason in faults.items():
        err.print(f"[red]{printable(path)}[/]: {reason}", soft_wrap=True)
    if faults:
        raise RefusedError("artifacts.verification-failed", f"{name} is damaged: {len(faults)} files differ")
    if not json:
        out.print(f"{printable(name)}: all bytes match the manifest", soft_wrap=True)


@app.command()
def prune(
    store: Annotated[
        str | None, typer.Option("--store", envvar="GUMSHOE_STORE", metavar="URI", help="Artifact store to prune.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", autocompletion=_complete_kind, help="Prune only this kind.")
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="Number of newest artifacts of each kind to keep.")] = 5,
    older_than: Annotated[
        float, typer.Option(min=0, max=100_000, help="Keep artifacts younger than this many days.")
    ] = 30,
    retention: Annotated[
        list[str] | None,
        typer.Option(
            envvar="GUMSHOE_RETENTION",
            metavar="KIND=DAYS",
            help="Remove artifacts of kind KIND after this many days, even the newest, e.g. reports=30 (repeatable). "
            "Replaces the store's own setting for this kind.",
        ),
    ] = None,
    expired_only: Annotated[
        bool, typer.Option("--expired-only", help="Remove only what is older than its retention.")
    ] = False,
    outputs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Also remove expired outputs below this directory (repeatable): the kinds runs, evaluations, "
            "trajectories and audit-logs.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove them. Without it, only list what would be removed.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Remove old artifacts that no kept artifact was made from, and files of unfinished publications.

    Deployed adapters are kept, and feedback unless --kind names it. What is older than its retention is removed in any
    case: see `gumshoe artifacts retention`.
    """
    from gumshoe.artifacts.pruning import PruneResult, prune_store
    from gumshoe.artifacts.retention import find_expired_outputs, read_retention, remove_output

    if store is None and not outputs:
        raise UsageError("artifacts.unclear-target", "nothing to prune; set --store, --outputs or both")
    limits = dict(map(_parse_retention, retention or []))
    opened = _store(store) if store else None
    if opened is not None:
        limits = read_retention(opened.storage) | limits
    found = [each for place in outputs or () for each in find_expired_outputs(place, limits)]
    expired = [each for each in found if kind in {None, each.kind}]
    pruned = PruneResult()
    if opened is not None:
        pruned = prune_store(
            opened,
            keep=keep,
            older_than=timedelta(days=older_than),
            kind=kind,
            retention=limits,
            expired_only=expired_only,
            dry_run=not yes,
        )
    for each in expired if yes else ():
        remove_output(each)
    if json:
        print_json(
            {
                "dry_run": not yes,
                "removed": [manifest.reference for manifest in pruned.removed],
                "kept": pruned.kept,
                "leftover_files": pruned.leftovers,
                "outputs": [{"path": str(each.path), "kind": each.kind} for each in expired],
            }
        )
        return
    verb = "removed" if yes else "would remove"
    for manifest in pruned.removed:
        out.print(f"{verb} {manifest.reference} ({_format_size(manifest.size)})")
    for each in expired:
        out.print(f"{verb} {printable(each.path)} ({each.kind}, {each.modified:%Y-%m-%d})", soft_wrap=True)
    for reference, reason in sorted(pruned.kept.items()):
        out.print(f"[dim]kept {reference}: {reason}[/]")
    total = sum(manifest.size for manifest in pruned.removed)
    out.print(f"{verb} {len(pruned.removed)} artifacts ({_format_size(total)}) and {pruned.leftovers} leftover files")
    if not yes and (pruned.removed or pruned.leftovers or expired):
        out.print("Nothing was removed yet; add --yes to remove it.")


@app.command(epilog="gumshoe artifacts remove adapters/r7f3-2 --store s3://bucket/project")
def remove(
    references: Annotated[
        list[str],
        typer.Argument(metavar="KIND/VERSION...", autocompletion=_complete_reference, help="Artifacts to remove."),
    ],
    store: StoreUri,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove them. Without it, only list what would be removed.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Remove artifacts by name, whatever their age, e.g. an adapter that was trained on erased mail.

    Artifacts that were made from them are listed and kept. If the newest is removed, KIND/latest refers to the newest
    that is left. A removed version is never used again.
    """
    from gumshoe.artifacts.pruning import remove_named

    result = remove_named(_store(store), references, dry_run=not yes)
    if json:
        print_json(
            {
                "dry_run": not yes,
                "removed": result.removed,
                "descendants": [manifest.reference for manifest in result.descendants],
            }
        )
        return
    verb = "removed" if yes else "would remove"
    for reference in result.removed:
        out.print(f"{verb} {printable(reference)}")
    for manifest in result.descendants:
        out.print(f"[dim]kept {manifest.reference}: made from {', '.join(manifest.made_from)}[/]", soft_wrap=True)
    if not yes:
        out.print("Nothing was removed yet; add --yes to remove it.")


@app.command("retention", epilog="gumshoe artifacts retention reports=90 feedback=180 --store s3://bucket/agents")
def set_retention(
    store: StoreUri,
    changes: Annotated[
        list[str] | None,
        typer.Argument(metavar="KIND=DAYS...", help="Days to keep a kind, e.g. reports=90, or reports=none for ever."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Set how long the artifacts of a store are kept, by the last part of their kind, or show it.

    Nothing is removed until `gumshoe artifacts prune --yes` runs. Kinds without a setting are kept for ever.
    """
    from gumshoe.artifacts.retention import read_retention, write_retention

    storage = _store(store).storage
    parsed = dict(map(_parse_retention_change, changes or []))
    kept = write_retention(storage, parsed) if parsed else read_retention(storage)
    days = {kind: time / timedelta(days=1) for kind, time in kept.items()}
    if json:
        print_json(days)
        return
    for kind, each in days.items():
        out.print(f"{printable(kind)}: {each:g} days")
    if not days:
        out.print("Everything is kept: no retention is set.")


@app.command(hidden=True, deprecated=True)
def forget(
    store: StoreUri,
    inbox: Annotated[str, typer.Option(metavar="ADDRESS", help="Email address whose mail to remove.")],
    yes: Annotated[bool, typer.Option("--yes", help="Remove it. Without it, only list what would be removed.")] = False,
    json: JsonFlag = False,
) -> None:
    """Remove everything that may quote a person's mail from a store. Use `gumshoe erase`, which keeps the rest."""
    from gumshoe.artifacts.private_data import find_private_copies, remove_private_copies

    err.print(
        "warning: `gumshoe artifacts forget` deletes whole artifacts; use `gumshoe erase --inbox ADDRESS`",
        soft_wrap=True,
    )
    if not inbox.isascii():  # other letters have several spellings
        raise UsageError("artifacts.inbox-not-ascii", f"cannot compare {inbox!r}; use `gumshoe erase --inbox ADDRESS`")
    opened, address = _store(store), inbox.strip().lower()
    found = find_private_copies(opened.storage, lambda each: each.isascii() and each.lower() == address)
    if yes:
        remove_private_copies(opened.storage, found)
    if json:
        print_json({"dry_run": not yes, "removed": [each.place for each in found]})
        return
    verb = "removed" if yes else "would remove"
    for each in found:
        whose = "" if each.is_named else ", may contain anybody's mail"
        out.print(
            f"{verb} {printable(each.place)} ({len(each.keys)} files, {_format_size(each.size)}{whose})", soft_wrap=True
        )
    if not found:
        out.print(f"Nothing in {printable(opened.uri)} quotes {printable(inbox)}.", soft_wrap=True)
    elif not yes:
        out.print("Nothing was removed yet; add --yes to remove it.")


def _parse_retention(text: str) -> tuple[str, timedelta]:
    kind, time = _parse_retention_change(text)
    if time is None:
        raise UsageError("artifacts.invalid-retention", f"--retention must be KIND=DAYS, e.g. reports=30, got {text!r}")
    return kind, time


def _parse_retention_change(text: str) -> tuple[str, timedelta | None]:
    from gumshoe.artifacts.retention import parse_days

    kind, sign, days = text.partition("=")
    if not kind or not sign or "/" in kind:
        raise UsageError("artifacts.invalid-retention", f"retention must be KIND=DAYS, e.g. reports=30, got {text!r}")
    return kind, None if days == "none" else parse_days(kind, days)


def _lineage_to_json(lineage: "ArtifactLineage") -> dict[str, object]:
    return {
        "reference": lineage.reference,
        "in_store": lineage.manifest is not None,
        "made_from": [_lineage_to_json(parent) for parent in lineage.made_from],
    }


def _lineage_to_tree(lineage: "ArtifactLineage", tree: "Tree | None" = None) -> "Tree":
    from rich.tree import Tree

    made = f"{lineage.manifest.created:%Y-%m-%d}" if lineage.manifest else "not in this store"
    label = f"{lineage.reference} [dim]({made})[/]"
    branch = tree.add(label) if tree is not None else Tree(label)
    for parent in lineage.made_from:
        _lineage_to_tree(parent, branch)
    return branch


def _format_size(amount: int) -> str:
    from rich.filesize import decimal

    return decimal(amount)
