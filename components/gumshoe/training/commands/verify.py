"""`gumshoe verify`: check the proof of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column

from gumshoe.errors import RefusedError, UsageError
from gumshoe.json_text import load_json
from gumshoe.terminal import JsonFlag, create_table, err, out, print_json, printable

if TYPE_CHECKING:
    from gumshoe.training.proof_check import ProofCheck

verify = typer.Typer(add_completion=False)

_STORED = "runs/"  # prefix of a run in a store
_SHOWN = 40  # differences


@verify.command(
    epilog="""
    gumshoe verify outputs/grpo_masked
    gumshoe verify outputs/pipeline
    gumshoe verify runs/r1 --store s3://bucket/project
    """
)
def run(
    place: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Output directory of `gumshoe train`, `gumshoe evaluate` or `gumshoe pipeline run`, or runs/RUN in a "
            "store.",
        ),
    ],
    store: Annotated[
        str | None,
        typer.Option("--store", envvar="GUMSHOE_STORE", metavar="URI", help="Artifact store, for runs/RUN."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Verify the proof of a run: compute all of its numbers again from the files, and compare.

    Exits with 3 if a value differs. Whoever can rewrite all files consistently cannot be found out.
    """
    from gumshoe.training.proof_check import verify_proof

    with _open_proof(place, store) as directory:
        found = verify_proof(directory)
    if json:
        print_json(_to_json(found))
    elif not found.differences:
        _print_claims(found)
    if found.differences:
        if not json:
            _print_differences(found)
        first = found.differences[0]
        raise RefusedError(
            "proof.differs",
            f"{len(found.differences):,} values of {place} differ from what its files show, e.g. {first.claim}: "
            f"recorded {first.recorded}, computed {first.computed}; one of these files was changed",
        )


@contextmanager
def _open_proof(place: str, store: str | None) -> Iterator[Path]:
    """Yield the directory of a proof; that of a run in a store is fetched, and deleted afterwards.

    Raises:
        UsageError: there is none.
        StorageError, UnavailableError, CorruptArtifactError: the report of the run cannot be fetched.
    """
    from gumshoe.artifacts.store import Store

    local = Path(place)
    if local.is_dir():
        yield _find_proof(local)
        return
    if not place.startswith(_STORED):
        raise UsageError("proof.missing", f"{place} is not a directory; name one, or a run in a store as runs/RUN")
    if not store:
        raise UsageError("proof.store-missing", f"{place} is not a directory; add --store if it is a run in a store")
    with TemporaryDirectory(prefix="gumshoe-verify-") as scratch:
        yield Store(store).fetch(f"{place.rstrip('/')}/reports/latest", Path(scratch, "report")).directory


def _find_proof(directory: Path) -> Path:
    """Return the directory itself, or that of the newest proof in a pipeline run; of a sweep, that of its best adapter.

    Raises:
        UsageError: a pipeline run has no proof, or none of the best adapter of its sweep.
    """
    from gumshoe.artifacts.manifest import file_digest
    from gumshoe.evaluation.proof.proof_models import PROOF, read_proof
    from gumshoe.training.run_spec import ADAPTER_WEIGHTS, SPEC

    try:
        spec = load_json((directory / SPEC).read_bytes())
    except (OSError, ValueError):
        return directory
    if not isinstance(spec, dict) or "pipeline" not in spec:
        return directory
    steps = directory / "steps"  # with a directory for each start of the pipeline
    found = sorted(steps.glob(f"**/evaluation/{PROOF}"), key=lambda each: each.stat().st_mtime)
    start = steps / found[-1].relative_to(steps).parts[0] if found else steps
    if best := next(start.glob(f"**/choose*/best/{ADAPTER_WEIGHTS}"), None):
        digest = file_digest(best)
        proofs = {each: read_proof(each.parent) for each in found if each.is_relative_to(start)}
        found = [each for each, proof in proofs.items() if proof.held_out and proof.held_out.adapter == digest]
    if not found:
        raise UsageError(
            "proof.missing",
            f"the pipeline run in {directory} has no {PROOF}{' of its best adapter' if best else ''}; it has not "
            "evaluated an adapter yet, or an earlier version of Gumshoe ran it",
        )
    return found[-1].parent


def _to_json(found: "ProofCheck") -> dict[str, Any]:
    return {
        "run": found.proof.run,
        "checked": found.checked,
        "differences": [
            {"claim": each.claim, "recorded": each.recorded, "computed": each.computed} for each in found.differences
        ],
        "absent": list(found.absent),
    }


def _print_claims(found: "ProofCheck") -> None:
    from gumshoe.evaluation.proof.proof_page import list_claims

    table = create_table("claim", "value", Column("file", style="dim"), box=None, pad_edge=False)
    for each in list_claims(found.proof):
        mark = " [bold red](must not be so)[/]" if each.holds is False else ""
        table.add_row(printable(each.claim), printable(each.value) + mark, printable(each.file))
    out.print(table)
    out.print(
        f"\n[green]Verified:[/] all {found.checked:,} values of run {printable(found.proof.run)} are what its files "
        "show.",
        soft_wrap=True,
    )
    if found.absent:
        err.print(
            f"[bold yellow]warning:[/] the weights of {', '.join(found.absent)} are not here, so their digests were "
            "not checked",
            soft_wrap=True,
        )


def _print_differences(found: "ProofCheck") -> None:
    table = create_table("claim", "recorded", "computed", box=None, pad_edge=False)
    for each in found.differences[:_SHOWN]:
        table.add_row(*(printable(value) for value in (each.claim, each.recorded, each.computed)))
    out.print(table)
    if len(found.differences) > _SHOWN:
        out.print(f"and {len(found.differences) - _SHOWN:,} more")
