"""Record what was decided about the canary of a run, in the run's part of the store."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from gumshoe.artifacts.store import Store
from gumshoe.terminal import hide_progress

IN_SERVICE = "in-service"
"""Outcome for an adapter that answers all questions without having been a canary, e.g. the first one."""
PROMOTED, ROLLED_BACK = "promoted", "rolled back"
"""Outcomes for a canary that answers all questions, and for one that gets none."""
_ADAPTERS = "adapters"


def _kind(run: str) -> str:
    return f"runs/{run}/canary"


def find_canary_decision(store: Store, run: str) -> str:
    """Return what was decided about the canary of a run; empty if it had none that was watched."""
    return str(_find_settings(store, run).get("why", ""))


def has_canary_decision(store: Store, run: str) -> bool:
    """Return True if the canary of a run was watched, and that ended with a decision."""
    return _find_settings(store, run).get("outcome", "undecided") not in ("undecided", IN_SERVICE)


def find_latest_accepted(store: Store, run: str) -> str | None:
    """Return the newest published adapter that was not rolled back as a canary, or None without one.

    The adapter of `run` itself does not count. Only rollbacks that a pipeline recorded are known.
    """
    latest = store.latest(_ADAPTERS)
    if latest is None or not (latest == run or _was_rolled_back(store, latest)):
        return latest
    versions = [each.version for each in store.list(_ADAPTERS)]
    if latest in versions:
        del versions[versions.index(latest) :]  # newer ones were published without becoming the latest
    return next((each for each in reversed(versions) if each != run and not _was_rolled_back(store, each)), None)


def _was_rolled_back(store: Store, version: str) -> bool:
    """Return True if the last decision about a canary was to roll it back. A pipeline's run and adapter share a name.

    A step that is repeated also records that it changed nothing, which is no decision.
    """
    outcomes = [each.settings.get("outcome") for each in store.list(_kind(version))]
    decisions = [each for each in outcomes if each in (IN_SERVICE, PROMOTED, ROLLED_BACK)]
    return decisions[-1:] == [ROLLED_BACK]


def _find_settings(store: Store, run: str) -> Mapping[str, object]:
    if store.latest(_kind(run)) is None:
        return {}
    return store.manifest(f"{_kind(run)}/latest").settings


def record_canary_decision(text: str, details: Mapping[str, object], run: str, store: str) -> str:
    """Publish what was decided, for the notification and the summary of the run, and return it.

    `details` have the outcome, which is `undecided` if the watch can go on.
    """
    with TemporaryDirectory(prefix="gumshoe-canary-") as place, hide_progress():
        Path(place, "canary.json").write_text(json.dumps(details, indent=2), encoding="utf-8")
        moment = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
        Store(store).publish(Path(place), _kind(run), moment, settings={"why": text, "outcome": details["outcome"]})
    return text
