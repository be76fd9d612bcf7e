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


def _kind(run: str) -> str:
    return f"runs/{run}/canary"


def find_canary_decision(store: Store, run: str) -> str:
    """Return what was decided about the canary of a run; empty if it had none that was watched."""
    return str(_find_settings(store, run).get("why", ""))


def has_canary_decision(store: Store, run: str) -> bool:
    """Return True if the canary of a run was watched, and that ended with a decision."""
    return _find_settings(store, run).get("outcome", "undecided") not in ("undecided", IN_SERVICE)


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
