"""Send a notification when a run has ended."""

import os
from dataclasses import asdict, dataclass

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from gumshoe.artifacts.canary_decision import find_canary_decision
from gumshoe.artifacts.store import Store
from gumshoe.errors import GumshoeError
from gumshoe.network import explain_untrusted
from gumshoe.redaction import redact
from gumshoe.terminal import err, out, printable

WEBHOOK = "GUMSHOE_WEBHOOK"
"""Environment variable with the webhook's address, which may be a secret."""
_SECONDS, _TRIES = 10.0, 4
SUCCEEDED, FAILED, CANCELLED, SKIPPED, UNKNOWN = "SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED", "UNKNOWN"
_STATES = {  # Kubeflow gives those of its metadata store, `kfp.local` and other backends those of the API
    SUCCEEDED: ("SUCCEEDED", "COMPLETE", "CACHED"),
    FAILED: ("FAILED", "ERROR"),
    CANCELLED: ("CANCELLED", "CANCELED", "CANCELING"),
    SKIPPED: ("SKIPPED", "NOT_TRIGGERED"),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    run: str
    store: str
    state: str
    """SUCCEEDED, FAILED, CANCELLED, SKIPPED or UNKNOWN."""
    adapter: str | None
    """Reference of the adapter that the run published."""
    text: str
    """The result in words, for chat services."""

    @classmethod
    def of(cls, run: str, store: str, state: str, error: str) -> "Outcome":
        """Collect the result of a run from its state as Kubeflow gives it, and the store.

        Kubeflow may still give RUNNING when all steps have ended: after some loops and conditions that succeeded, and
        after a step whose pod was lost. What the run has published then decides.
        """
        adapter = why = None
        has_report = False
        try:
            artifacts = Store(store)
            found = artifacts.find(f"adapters/{run}")
            adapter = found.reference if found else None
            if artifacts.latest(f"runs/{run}/reports"):
                has_report = True
                why = str(artifacts.manifest(f"runs/{run}/reports/latest").settings.get("why", ""))
            if decision := find_canary_decision(artifacts, run):
                why = f"{why or ''} Canary: {decision}.".strip()
        except GumshoeError as unreadable:
            why = f"cannot read the store: {unreadable.message_with_code}"
        found_state = next((name for name, given in _STATES.items() if state.upper() in given), UNKNOWN)
        if found_state == UNKNOWN and (adapter or has_report):
            found_state = FAILED if error else SUCCEEDED
        return cls(
            run, store, found_state, adapter, redact(_describe(run, found_state, state, error, adapter, why or ""))
        )


def _describe(run: str, state: str, given: str, error: str, adapter: str | None, why: str) -> str:
    """Describe the result of a run. `given` is its state as Kubeflow gives it, and `why` the verdict of the gate."""
    if state == SUCCEEDED:
        text = (
            f"Run {run} succeeded and published {adapter}." if adapter else f"Run {run} succeeded without an adapter."
        )
        return f"{text} {why}".strip()
    if state == UNKNOWN:
        return (
            f"Run {run} has ended. Kubeflow does not say how (state {given or 'missing'}): {error or 'see its steps'}"
        )
    verb = {FAILED: "failed", CANCELLED: "was cancelled", SKIPPED: "was skipped"}[state]
    return f"Run {run} {verb} ({given}): {error or 'see its steps'}"


def send_notification(outcome: Outcome) -> None:
    """Print the result of a run and post it to the webhook, if one is set. A failed request causes only a warning."""
    out.print(printable(outcome.text), soft_wrap=True)
    address = os.environ.get(WEBHOOK)
    if not address:
        return
    retrying = Retrying(
        stop=stop_after_attempt(_TRIES),
        wait=wait_random_exponential(0.5, 10),
        retry=retry_if_exception_type(httpx.HTTPError),
        reraise=True,
    )
    try:
        for attempt in retrying:
            with attempt:
                httpx.post(address, json=asdict(outcome), timeout=_SECONDS).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        # Only the type: the message contains the address, which may contain a key.
        why = explain_untrusted(error, "the webhook") or type(error).__name__
        err.print(f"[bold yellow]warning:[/] cannot send the notification: {printable(why)}", soft_wrap=True)
