"""Send a notification when a run has ended."""

import os
from dataclasses import asdict, dataclass

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from gumshoe.artifacts.store import Store
from gumshoe.errors import GumshoeError
from gumshoe.terminal import err, out, printable

WEBHOOK = "GUMSHOE_WEBHOOK"
"""Environment variable with the webhook's address, which may be a secret."""
_SECONDS, _TRIES = 10.0, 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run."""

    run: str
    store: str
    state: str
    """State as Kubeflow names it: SUCCEEDED, FAILED or CANCELLED."""
    adapter: str | None
    """Reference of the adapter that the run published."""
    text: str
    """The result in words, for chat services."""

    @classmethod
    def of(cls, run: str, store: str, state: str, error: str) -> "Outcome":
        """Collect the result of a run from its state and the store."""
        adapter = why = None
        try:
            artifacts = Store(store)
            found = artifacts.find(f"adapters/{run}")
            adapter = found.reference if found else None
            if artifacts.latest(f"runs/{run}/reports"):
                why = str(artifacts.manifest(f"runs/{run}/reports/latest").settings.get("why", ""))
        except GumshoeError as unreadable:
            why = f"cannot read the store: {unreadable.message_with_code}"
        if state != "SUCCEEDED":
            text = f"Run {run} ended with state {state}: {error or 'see its steps'}"
        elif adapter:
            text = f"Run {run} published {adapter}. {why or ''}"
        else:
            text = f"Run {run} succeeded, but published no adapter. {why or ''}"
        return cls(run, store, state, adapter, text.strip())


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
        err.print(f"[bold yellow]warning:[/] cannot send the notification: {type(error).__name__}")
