"""Test the notification about the end of a run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.cluster.notify import WEBHOOK, Outcome, send_notification
from tests.pipelines.webhook import webhook


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the pauses between attempts, and return their lengths in seconds."""
    taken: list[float] = []
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=taken.append))
    return taken


def publish(store: Path, kind: str, version: str, **settings: object) -> None:
    files = store.with_name("files")
    files.mkdir(exist_ok=True)
    (files / "file").write_text(f"{kind} {version}")
    Store(str(store)).publish(files, kind, version, settings=dict(settings))


def test_a_notification_names_the_published_adapter_and_the_reason(tmp_path: Path) -> None:
    store = tmp_path / "store"
    publish(store, "runs/r1/reports", "a", why="adapter passes.")
    publish(store, "adapters", "r1")
    found = Outcome.of("r1", str(store), "SUCCEEDED", "")
    assert found.adapter == "adapters/r1"
    for value in ("r1", "adapters/r1", "adapter passes."):
        assert value in found.text


def test_a_notification_gives_the_reason_if_the_gate_failed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    publish(store, "runs/r1/reports", "a", why="adapter does not pass.")
    found = Outcome.of("r1", str(store), "SUCCEEDED", "")
    assert found.adapter is None
    for value in ("r1", "adapter does not pass."):
        assert value in found.text


def test_a_notification_of_a_failed_run_contains_its_state_and_error(tmp_path: Path) -> None:
    found = Outcome.of("r1", str(tmp_path / "store"), "FAILED", "train-grpo ended with 137")
    for value in ("r1", "FAILED", "train-grpo ended with 137"):
        assert value in found.text


@pytest.mark.parametrize(
    ("given", "state", "verb"),
    [
        ("COMPLETE", "SUCCEEDED", "succeeded"),  # of Kubeflow's metadata store
        ("CACHED", "SUCCEEDED", "succeeded"),
        ("SUCCEEDED", "SUCCEEDED", "succeeded"),  # of the local runner
        ("FAILED", "FAILED", "failed"),
        ("CANCELED", "CANCELLED", "cancelled"),
        ("CANCELLED", "CANCELLED", "cancelled"),
        ("SKIPPED", "SKIPPED", "skipped"),
        ("RUNNING", "UNKNOWN", "does not say"),
        ("UNKNOWN", "UNKNOWN", "does not say"),
        ("NEW", "UNKNOWN", "does not say"),
        ("", "UNKNOWN", "does not say"),
        ("STATE_OF_2030", "UNKNOWN", "STATE_OF_2030"),
    ],
)
def test_every_state_of_kubeflow_has_a_meaning(given: str, state: str, verb: str, tmp_path: Path) -> None:
    """On Kubeflow, the error is always empty."""
    found = Outcome.of("r1", str(tmp_path / "store"), given, "")
    assert found.state == state
    assert verb in found.text


@pytest.mark.parametrize("kind", ["runs/r1/reports", "adapters"])
def test_a_run_that_kubeflow_still_calls_running_succeeded_if_it_published_its_result(
    kind: str, tmp_path: Path
) -> None:
    """Kubeflow does not end the state of some loops and conditions."""
    store = tmp_path / "store"
    publish(store, kind, "r1", why="adapter passes.")
    found = Outcome.of("r1", str(store), "RUNNING", "")
    assert (found.state, "succeeded" in found.text) == ("SUCCEEDED", True)
    assert Outcome.of("r1", str(store), "RUNNING", "no disk").state == "FAILED"


def test_a_failed_webhook_request_is_retried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pauses: list[float]
) -> None:
    with webhook() as hook:
        hook.statuses.extend([503, 500])
        monkeypatch.setenv(WEBHOOK, hook.url)
        send_notification(Outcome.of("r1", str(tmp_path / "store"), "SUCCEEDED", ""))
        assert [each["run"] for each in hook.received] == ["r1"]
    assert len(pauses) == 2


@pytest.mark.parametrize(
    ("address", "type_of_error"),
    [("http://127.0.0.1:9/secret-key", "ConnectError"), ("no address", "UnsupportedProtocol")],
)
def test_an_unreachable_webhook_only_causes_a_warning_without_its_address(
    address: str, type_of_error: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(WEBHOOK, address)
    send_notification(Outcome.of("r1", str(tmp_path / "store"), "SUCCEEDED", ""))
    printed = capfd.readouterr()
    assert "warning" in printed.err
    assert type_of_error in printed.err
    assert "secret-key" not in printed.err + printed.out
