"""Delete artifacts that are no longer needed."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

from gumshoe.artifacts.deployments import find_deployed
from gumshoe.artifacts.manifest import DATA_PREFIX, MANIFEST, Manifest, check_kind, now
from gumshoe.artifacts.storage import NotFoundError
from gumshoe.artifacts.store import ABANDONED_AFTER, PRUNED, Store

_FEEDBACK = "feedback"  # each publication has other records of users, so an old one is not outdated
# The files of one publication. Files of other programs do not match.
_PUBLICATION = re.compile(rf"(?P<reference>(?P<kind>.+)/[^/]+)/(?P<data>{DATA_PREFIX}[0-9a-f]{{32}})/.+", re.S)


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The artifacts that were removed, or would be, and why the others were kept."""

    removed: list[Manifest] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Reason for keeping each reference."""
    leftovers: int = 0
    """Number of files of publications that were never finished."""


def prune_store(
    store: Store,
    *,
    keep: int,
    older_than: timedelta,
    kind: str | None = None,
    retention: Mapping[str, timedelta] = MappingProxyType({}),
    expired_only: bool = False,
    dry_run: bool = False,
) -> PruneResult:
    """Remove old artifacts, and files of publications that were never finished.

    These are kept: the `keep` newest of each kind, the latest, those younger than `older_than`, adapters that are
    deployed, all feedback unless it is the `kind`, and everything that a kept artifact was made from. With `kind`,
    other kinds are kept too. Unfinished publications are removed after `older_than`, and after one day at the
    earliest, because they may still be in progress. The version of a removed artifact is never used again.

    `retention` limits how long artifacts may be kept at all, by the last segment of their kind. Older ones are removed
    even if one of the rules above would keep them. With `expired_only`, only those are removed, and no unfinished
    publications. If the latest version of a kind is removed, `latest` names the newest that is left.

    Raises:
        InvalidNameError: if the kind does not have the allowed form.
        StorageError, UnavailableError: if the store cannot be listed.
    """
    if kind is not None:
        check_kind(kind)
    manifests = store.list()
    expired = {
        each.reference
        for each in manifests
        if kind in {None, each.kind}
        and (time := retention.get(each.kind.rpartition("/")[2])) is not None
        and now() - each.created > time
    }
    kept = _select_kept(store, manifests, keep, now() - older_than, kind)
    if expired_only:
        kept |= {each.reference: "not expired" for each in manifests if each.reference not in kept}
    kept = {reference: reason for reference, reason in kept.items() if reference not in expired}
    removed = [manifest for manifest in manifests if manifest.reference not in kept]
    unfinished = now() - max(older_than, ABANDONED_AFTER)
    leftovers = [] if expired_only else _find_leftovers(store, manifests, unfinished, kind)
    if not dry_run:
        _remove(store, removed)
        for folder in sorted({key[: key.index(f"/{DATA_PREFIX}")] for key in leftovers}):
            published = store.find(folder)  # it may have become visible since the listing
            store.storage.delete(
                _find_leftovers(store, [published] if published else [], unfinished, kind, f"{folder}/")
            )
        if not expired_only:
            store.storage.abandon_uploads(f"{kind}/" if kind else "", unfinished, _PUBLICATION)
    return PruneResult(removed, kept, len(leftovers))


@dataclass(frozen=True, slots=True)
class RemoveResult:
    """Artifacts that were removed by name, or would be, and those that are left and were made from one of them."""

    removed: list[str]
    descendants: list[Manifest]


def remove_named(store: Store, references: Iterable[str], *, dry_run: bool = False) -> RemoveResult:
    """Remove artifacts by name, whatever their age and even if others were made from them.

    `kind/latest` is the artifact that it names now. Afterwards, `latest` names the newest version that is left. A
    removal that was interrupted is continued.

    Raises:
        InvalidNameError, InvalidManifestError: if a name or a manifest is invalid. Nothing is removed.
        NotFoundError: if one does not exist. Nothing is removed.
        StorageError, UnavailableError: if one cannot be removed.
    """
    found, begun = list[Manifest](), list[str]()
    for reference in dict.fromkeys(references):
        try:
            found.append(store.manifest(reference))
        except NotFoundError:
            if not any(entry.key == f"{reference}/{PRUNED}" for entry in store.storage.entries(f"{reference}/")):
                raise
            begun.append(reference)
    removed = list(dict.fromkeys([*begun, *(manifest.reference for manifest in found)]))
    descendants, parents = dict[str, Manifest](), set(removed)
    others = [manifest for manifest in store.list() if manifest.reference not in parents]
    while more := [each for each in others if each.reference not in parents and parents & set(each.made_from)]:
        descendants |= {each.reference: each for each in more}
        parents |= descendants.keys()
    if not dry_run:
        for reference in begun:
            _remove_files(store, reference)
            store.repoint_latest(reference.rpartition("/")[0])
        _remove(store, {manifest.reference: manifest for manifest in found}.values())
    return RemoveResult(removed, [*descendants.values()])


def _remove(store: Store, manifests: Iterable[Manifest]) -> None:
    kinds = set[str]()
    for manifest in manifests:
        remove_artifact(store, manifest)
        kinds.add(manifest.kind)
    for kind in kinds:
        store.repoint_latest(kind)


def remove_artifact(store: Store, manifest: Manifest) -> None:
    """Delete an artifact's manifest first, then its files, so that nobody sees a half-deleted artifact."""
    note = {"content": manifest.content, "created": manifest.created.isoformat(), "pruned": now().isoformat()}
    store.storage.create(f"{manifest.reference}/{PRUNED}", json.dumps(note).encode())
    store.storage.delete([f"{manifest.reference}/{MANIFEST}"])
    _remove_files(store, manifest.reference)


def _remove_files(store: Store, reference: str) -> None:
    store.storage.delete([entry.key for entry in store.storage.entries(f"{reference}/{DATA_PREFIX}")])


def _select_kept(
    store: Store, manifests: list[Manifest], keep: int, since: datetime, kind: str | None
) -> dict[str, str]:
    kept: dict[str, str] = {}
    kinds = {manifest.kind for manifest in manifests}
    for each in kinds:
        of_kind = [manifest.reference for manifest in manifests if manifest.kind == each]
        latest = store.latest(each)
        kept.update(dict.fromkeys(of_kind[max(0, len(of_kind) - keep) :], f"one of the {keep} newest"))
        kept.update(dict.fromkeys(of_kind, "of another kind") if kind not in {None, each} else {})
        kept.update({f"{each}/{latest}": "the latest"} if latest else {})
        if kind is None and each.rpartition("/")[2] == _FEEDBACK:
            kept.update(dict.fromkeys(of_kind, "feedback, which has a retention of its own"))
    kept.update({manifest.reference: "recent" for manifest in manifests if manifest.created > since})
    deployed = find_deployed(store.storage)
    kept.update({f"adapters/{version}": f"deployed as {name}" for version, name in deployed.items()})
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


def _find_leftovers(
    store: Store, manifests: list[Manifest], before: datetime, kind: str | None, folder: str | None = None
) -> list[str]:
    """Return the keys of files that belong to no manifest and were last written before a time."""
    owned = {(manifest.reference, manifest.data) for manifest in manifests}
    prefix = folder if folder is not None else f"{kind}/" if kind else ""
    return [
        entry.key
        for entry in store.storage.entries(prefix)
        if (found := _PUBLICATION.fullmatch(entry.key))
        and kind in {None, found["kind"]}
        and (found["reference"], found["data"]) not in owned
        and entry.modified < before
    ]
