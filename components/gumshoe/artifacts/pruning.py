"""Remove artifacts that nothing needs any longer."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gumshoe.artifacts.manifest import DATA_PREFIX, MANIFEST, Manifest, check_kind, now
from gumshoe.artifacts.storage import Storage
from gumshoe.artifacts.store import Store


@dataclass(frozen=True, slots=True)
class Pruned:
    """What `prune` removed, or would remove, and why it kept the rest."""

    removed: list[Manifest] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Reference to the reason for keeping it."""
    leftovers: int = 0
    """Files of publications that were never finished."""


def prune(store: Store, *, keep: int, older_than: timedelta, kind: str | None = None, dry_run: bool = False) -> Pruned:
    """Remove old artifacts, and the leftovers of publications that were never finished.

    Kept are the `keep` newest of each kind, the latest, those younger than `older_than`, and whatever a
    kept artifact was made from. With `kind`, other kinds are left alone. Leftovers go once they are as
    old as that, and a day at least: a publication may be under way.

    Raises:
        InvalidNameError: the kind is not of the allowed form.
    """
    if kind is not None:
        check_kind(kind)
    manifests = store.list()
    kept = _kept(store, manifests, keep, now() - older_than, kind)
    removed = [manifest for manifest in manifests if manifest.reference not in kept]
    unfinished = now() - max(older_than, timedelta(days=1))
    leftovers = _leftovers(store.storage, manifests, unfinished, f"{kind}/" if kind else "")
    if not dry_run:
        for manifest in removed:  # its manifest first: what is half removed is not seen
            store.storage.delete([f"{manifest.reference}/{MANIFEST}"])
            store.storage.delete([entry.key for entry in store.storage.entries(f"{manifest.reference}/{DATA_PREFIX}")])
        store.storage.delete(leftovers)
        store.storage.abandon_uploads(f"{kind}/" if kind else "", unfinished)
    return Pruned(removed, kept, len(leftovers))


def _kept(store: Store, manifests: list[Manifest], keep: int, since: datetime, kind: str | None) -> dict[str, str]:
    kept: dict[str, str] = {}
    kinds = {manifest.kind for manifest in manifests}
    for each in kinds:
        of_kind = [manifest.reference for manifest in manifests if manifest.kind == each]
        latest = store.latest(each)
        kept.update(dict.fromkeys(of_kind[max(0, len(of_kind) - keep) :], f"one of the {keep} newest"))
        kept.update(dict.fromkeys(of_kind, "of another kind") if kind not in {None, each} else {})
        kept.update({f"{each}/{latest}": "the latest"} if latest else {})
    kept.update({manifest.reference: "recent" for manifest in manifests if manifest.created > since})
    by_reference = {manifest.reference: manifest for manifest in manifests}
    kept = {reference: reason for reference, reason in kept.items() if reference in by_reference}
    waiting = list(kept)
    while waiting:
        reference = waiting.pop()
        for parent in by_reference[reference].made_from:
            if parent in by_reference and parent not in kept:
                kept[parent] = f"{reference} was made from it"
                waiting.append(parent)
    return kept


def _leftovers(storage: Storage, manifests: list[Manifest], before: datetime, prefix: str) -> list[str]:
    owned = tuple(f"{manifest.reference}/{manifest.data}/" for manifest in manifests)
    return [
        entry.key
        for entry in storage.entries(prefix)
        if f"/{DATA_PREFIX}" in entry.key and not entry.key.startswith(owned) and entry.modified < before
    ]
