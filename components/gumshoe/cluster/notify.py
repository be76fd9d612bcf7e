"""Tell a webhook how a run ended."""

import os
from dataclasses import asdict, dataclass

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from gumshoe.artifacts.store import Store
from gumshoe.errors import GumshoeError
from gumshoe.terminal import err, out, printable

WEBHOOK = "GUMSHOE_WEBHOOK"
"""The environment variable that holds the address, which may be a secret."""
_SECONDS, _TRIES = 10.0, 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    run: str
    store: str
    state: str
    """As Kubeflow names it: SUCCEEDED, FAILED or CANCELLED."""
    adapter: str | None
    """The reference of the adapter that it published."""
    text: str
    """The same in words: what chat services show."""

    @classmethod
    def of(cls, run: str, store: str, state: str, error: str) -> "Outcome":
        """What is known of a run from its state and the store."""
        adapter = why = None
        try:
            kept = Store(store)
            found = kept.find(f"adapters/{run}")
            adapter = found.reference if found else None
            if kept.latest(f"runs/{run}/reports"):
                why = str(kept.manifest(f"runs/{run}/reports/latest").settings.get("why", ""))
        except GumshoeError as unreadable:
            why = f"the store cannot be read: {unreadable.message_with_code}"
        if state != "SUCCEEDED":
            told = f"Run {run} ended as {state}: {error or 'see its steps'}"
        elif adapter:
            told = f"Run {run} published {adapter}. {why or ''}"
        else:
            told = f"Run {run} is done, and published no adapter. {why or ''}"
        return cls(run, store, state, adapter, told.strip())


def tell(outcome: Outcome) -> None:
    """Print how a run ended, and post it where a webhook is set; one that does not take it is only warned of."""
    out.print(printable(outcome.text), soft_wrap=True)
    address = os.environ.get(WEBHOOK)
    if not address:
        return
    patient = Retrying(
        stop=stop_after_attempt(_TRIES),
        wait=wait_random_exponential(0.5, 10),
        retry=retry_if_exception_type(httpx.HTTPError),
        reraise=True,
    )
    try:
        for attempt in patient:
            with attempt:
                httpx.post(address, json=asdict(outcome), timeout=_SECONDS).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        # Only its kind: the message names the address, which may hold a key.
        err.print(f"[bold yellow]warning:[/] the webhook did not take it: {type(error).__name__}")
