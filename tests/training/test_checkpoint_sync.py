"""Checkpoints in a store: uploaded during a run, and restored into an empty directory."""

import errno
import io
from pathlib import Path
from unittest.mock import Mock

import pytest

from gumshoe.artifacts.pruning import remove_artifact
from gumshoe.artifacts.storage import FileStorage
from gumshoe.artifacts.store import Store
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.evaluation.proof.proof_models import PROOF
from gumshoe.training.launch import checkpoint_sync
from gumshoe.training.launch.checkpoint_sync import CHECKPOINTS, INCOMING, CheckpointStore
from gumshoe.training.run_spec import (
    BASELINE,
    BEST,
    BEST_BEFORE,
    FINAL,
    METADATA,
    METRICS,
    SPEC,
    STALLED,
    find_checkpoints,
)
from tests.errors import raises
from tests.waiting import wait_until

NOT_UPLOADED = "training.checkpoint-not-uploaded"


@pytest.fixture(params=["file", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URI of an empty store, in a directory or a bucket."""
    if request.param == "file":
        return (tmp_path / "store").as_uri()
    return f"s3://{request.getfixturevalue('s3_bucket')}/project/runs/r1"


@pytest.fixture(autouse=True)
def _poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_sync, "_POLL", 0.05)
    monkeypatch.setattr(checkpoint_sync, "_RETRY_DELAY", 0.05)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run's directory, before its first checkpoint."""
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / SPEC).write_text("{}")
    (directory / METRICS).write_text("")
    return directory


def save(directory: Path, name: str, text: str, step: int = 1) -> None:
    """Save a directory as a trainer does, with its metadata last."""
    place = directory / name
    place.mkdir(exist_ok=True)
    (place / "adapter_model.safetensors").write_text(text)
    (place / METADATA).write_text(f'{{"step": {step}}}')
    with (directory / METRICS).open("a") as metrics:
        metrics.write(f"{text}\n")


def files(directory: Path) -> dict[str, str]:
    return {str(each.relative_to(directory)): each.read_text() for each in directory.rglob("*") if each.is_file()}


def versions(uri: str) -> list[str]:
    return sorted(each.version for each in Store(uri).list(CHECKPOINTS))


def wait_for_versions(uri: str, wanted: list[str]) -> None:
    """Return as soon as the store has these checkpoints and no others."""
    wait_until(lambda: versions(uri) == wanted)


def test_checkpoints_are_uploaded_during_the_run_up_to_the_limit(uri: str, run: Path) -> None:
    with CheckpointStore(uri, 2).uploading(run, attempt=1):
        for step in (1, 2, 3):
            save(run, f"checkpoint-{step}", f"step {step}")
            wait_for_versions(uri, [f"001-{each:06}" for each in range(max(1, step - 1), step + 1)])
    assert versions(uri) == ["001-000002", "001-000003"]
    assert not [each for each in run.iterdir() if each.name.startswith(".")]


def test_a_run_is_restored_into_an_empty_directory(uri: str, run: Path, tmp_path: Path) -> None:
    """The restored files are the last checkpoint, the best adapter and the records, without older checkpoints."""
    save(run, "checkpoint-1", "step 1")
    save(run, BEST, "best")
    (run / BASELINE).write_text("{}")
    save(run, "checkpoint-2", "step 2")
    with CheckpointStore(uri, 2).uploading(run, attempt=1):
        pass
    other = tmp_path / "other"
    other.mkdir()
    CheckpointStore(uri, 2).restore(other)
    expected = {name: text for name, text in files(run).items() if not name.startswith("checkpoint-1")}
    assert files(other) == expected


def test_a_best_adapter_after_the_last_checkpoint_is_not_part_of_it(uri: str, run: Path, tmp_path: Path) -> None:
    save(run, "checkpoint-1", "step 1")
    save(run, BEST_BEFORE, "best at step 1")
    save(run, BEST, "best at step 2", 2)
    with CheckpointStore(uri, 2).uploading(run, attempt=1):
        pass
    other = tmp_path / "other"
    other.mkdir()
    CheckpointStore(uri, 2).restore(other)
    assert files(other)[f"{BEST}/adapter_model.safetensors"] == "best at step 1"


def test_the_latest_attempt_and_the_end_are_restored_first(uri: str, run: Path, tmp_path: Path) -> None:
    """A later attempt counts, even if it is at an earlier step."""
    store_of_run = CheckpointStore(uri, 9)
    for attempt, step in ((1, 1), (1, 5), (2, 3)):
        save(run, f"checkpoint-{step}", f"attempt {attempt}")
        with store_of_run.uploading(run, attempt):
            pass
        (run / f"checkpoint-{step}" / METADATA).unlink()
    save(run, "checkpoint-3", "attempt 2")
    save(run, FINAL, "final")
    with store_of_run.uploading(run, 2):
        pass
    assert versions(uri) == ["001-000001", "001-000005", "002-000003", "002-000003-end"]
    other = tmp_path / "other"
    other.mkdir()
    CheckpointStore(uri, 9).restore(other)
    assert files(other)["final/adapter_model.safetensors"] == "final"
    assert "checkpoint-5/adapter_model.safetensors" not in files(other)


def test_the_end_is_uploaded_with_the_proof(uri: str, run: Path) -> None:
    """The proof is written after the final adapter, and an upload during that time must not count as the end."""
    with CheckpointStore(uri, 9).uploading(run, 1):
        save(run, FINAL, "final")
        save(run, "checkpoint-1", "step 1")
        wait_for_versions(uri, ["001-000001"])
        (run / PROOF).write_text("{}")
        wait_for_versions(uri, ["001-000001", "001-000001-end"])
    assert PROOF in {each.path for each in Store(uri).manifest(f"{CHECKPOINTS}/001-000001-end").files}


def test_restoring_does_not_change_an_existing_run(uri: str, run: Path) -> None:
    save(run, "checkpoint-1", "step 1")
    with CheckpointStore(uri, 2).uploading(run, 1):
        pass
    (run / "checkpoint-1" / "adapter_model.safetensors").write_text("newer")
    CheckpointStore(uri, 2).restore(run)
    assert files(run)["checkpoint-1/adapter_model.safetensors"] == "newer"


def test_only_new_and_complete_checkpoints_are_uploaded(uri: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(run, "checkpoint-1", "step 1")
    (run / "checkpoint-2").mkdir()
    (run / "checkpoint-2" / "adapter_model.safetensors").write_text("half")
    polls: list[Path] = []

    def poll(directory: Path) -> list[Path]:
        polls.append(directory)
        return find_checkpoints(directory)

    monkeypatch.setattr(checkpoint_sync, "find_checkpoints", poll)
    store_of_run = CheckpointStore(uri, 2)
    for attempt in (1, 2):
        with store_of_run.uploading(run, attempt):
            wait_for_versions(uri, ["001-000001"])
            before = len(polls)
            wait_until(lambda before=before: len(polls) >= before + 3)  # type: ignore[misc]
    assert versions(uri) == ["001-000001"]


def test_a_store_of_another_run_is_rejected(uri: str, run: Path) -> None:
    CheckpointStore(uri, 2).check_free()
    save(run, "checkpoint-1", "step 1")
    with CheckpointStore(uri, 2).uploading(run, 1):
        pass
    with raises("training.checkpoints-exist", Store(uri).uri):
        CheckpointStore(uri, 2).check_free()


def test_pruned_checkpoints_are_reported(uri: str, run: Path, tmp_path: Path) -> None:
    save(run, "checkpoint-1", "step 1")
    with CheckpointStore(uri, 2).uploading(run, 1):
        pass
    store = Store(uri)
    for each in store.list(CHECKPOINTS):
        remove_artifact(store, each)
    (other := tmp_path / "other").mkdir()
    with raises("training.checkpoints-pruned", store.uri):
        CheckpointStore(uri, 2).restore(other)
    CheckpointStore(uri, 2).restore(other, may_begin_again=True)
    assert list(other.iterdir()) == []


@pytest.mark.parametrize("is_replaced", [False, True], ids=["its files are gone", "replaced during the fetch"])
def test_a_warm_start_whose_checkpoint_is_damaged_begins_again(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_replaced: bool
) -> None:
    """The next checkpoint replaces the damaged one. Another run cannot begin again, and says so."""
    uri = (tmp_path / "store").as_uri()
    save(run, "checkpoint-1", "step 1")
    store = CheckpointStore(uri, 1)
    with store.uploading(run, store.claim_attempt(1)):
        pass
    (found,) = Store(uri).list(CHECKPOINTS)
    for each in Store(uri).storage.entries(f"{found.reference}/{found.data}/"):
        if each.key.endswith(".safetensors"):
            Store(uri).storage.delete([each.key])
    if is_replaced:
        monkeypatch.setattr(Store, "list", lambda *_: [found])
        remove_artifact(Store(uri), found)
    code = "artifacts.not-found" if is_replaced else "store.not-found"
    (other := tmp_path / "other").mkdir()
    with raises(code):
        CheckpointStore(uri, 1).restore(other)
    again = CheckpointStore(uri, 1)
    again.restore(other, may_begin_again=True)
    monkeypatch.undo()
    assert list(other.iterdir()) == []
    assert code in capsys.readouterr().err
    with again.uploading(run, again.claim_attempt(1)):
        pass
    assert versions(uri) == ["002-000001"]
    again.restore(other, may_begin_again=True)
    assert files(other) == files(run)


def test_two_warm_starts_with_the_same_inputs_keep_each_others_last_checkpoint(uri: str, run: Path) -> None:
    """The one that began later counts; the other one deletes no checkpoint but its own."""
    first, second = CheckpointStore(uri, 1), CheckpointStore(uri, 1)
    attempts = first.claim_attempt(1), second.claim_attempt(1)
    save(run, "checkpoint-1", "step 1")
    with second.uploading(run, attempts[1]):
        pass
    save(run, "checkpoint-2", "step 2")
    with first.uploading(run, attempts[0]):
        pass
    assert versions(uri) == ["002-000001"]
    assert CheckpointStore(uri, 1).claim_attempt(1) == 3


def test_files_are_copied_if_links_are_not_supported(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "this file system has no links")

    monkeypatch.setattr("os.link", refuse)
    save(run, "checkpoint-1", "step 1")
    uri = (tmp_path / "store").as_uri()
    with CheckpointStore(uri, 2).uploading(run, 1):
        pass
    assert versions(uri) == ["001-000001"]


def test_a_full_disk_does_not_end_the_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = (tmp_path / "store").as_uri()
    save(run, "checkpoint-1", "step 1")
    with monkeypatch.context() as full:
        full.setattr(checkpoint_sync, "_link_directories", Mock(side_effect=OSError(errno.ENOSPC, "no room")))
        with CheckpointStore(uri, 2).uploading(run, 1):
            wait_until(lambda: NOT_UPLOADED in capsys.readouterr().err)
            full.undo()
    assert versions(uri) == ["001-000001"]


def test_uploads_are_retried_until_the_store_is_back(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    store.write_text("a file instead of a directory")
    save(run, "checkpoint-1", "step 1")
    with CheckpointStore(store.as_uri(), 2).uploading(run, 1):
        wait_until(lambda: NOT_UPLOADED in capsys.readouterr().err)
        store.unlink()
    assert versions(store.as_uri()) == ["001-000001"]


def test_a_failed_last_upload_is_reported_and_keeps_the_checkpoint(run: Path, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file instead of a directory")
    save(run, "checkpoint-1", "step 1")
    with (
        raises(NOT_UPLOADED, run, tmp_path / "store"),
        CheckpointStore((tmp_path / "store").as_uri(), 2).uploading(run, 1),
    ):
        pass
    assert files(run)["checkpoint-1/adapter_model.safetensors"] == "step 1"


def test_a_training_of_a_step_leaves_no_directory_if_the_store_has_its_last_checkpoint(
    uri: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gumshoe.training import training_step
    from gumshoe.training.train_request import TrainRequest

    def fail(request: TrainRequest, **_: object) -> Path:
        directory = Path(request.settings["output.directory"])
        assert directory.parent == tmp_path / "trainings"
        save(directory, f"checkpoint-{steps.pop()}", "weights")
        (directory / STALLED).write_text("in a dead lock")
        raise UnavailableError("training.interrupted", "stopped")

    (tmp_path / "trainings").mkdir()
    monkeypatch.setenv("GUMSHOE_TRAININGS", str(tmp_path / "trainings"))
    monkeypatch.setattr(training_step, "train", fail)
    save(run, "checkpoint-1", "step 1")
    with CheckpointStore(uri, 2).uploading(run, attempt=1):
        pass
    request = TrainRequest(index="index", scenarios="scenarios", config="tiny", settings={"output.checkpoints": uri})
    steps = [2, 1]
    for left in (0, 1):
        with raises("training.interrupted"):
            training_step.run_training(request)
        assert len(list((tmp_path / "trainings").iterdir())) == left
        assert capsys.readouterr().err.endswith("in a dead lock\n")


def test_attempt_numbers_are_unique(uri: str) -> None:
    assert [CheckpointStore(uri, 2).claim_attempt(each) for each in (1, 1, 2, 7)] == [1, 2, 3, 7]
    CheckpointStore(uri, 2).check_free()
    assert Store(uri).list() == []


def test_a_killed_restore_is_repeated(uri: str, run: Path, tmp_path: Path) -> None:
    save(run, "checkpoint-1", "step 1")
    with CheckpointStore(uri, 2).uploading(run, 1):
        pass
    other = tmp_path / "other"
    (other / "checkpoint-1" / "half").mkdir(parents=True)
    CheckpointStore(uri, 2).restore(other)
    assert files(other) == files(run)


def test_a_restored_directory_has_a_run_once_it_is_complete(
    uri: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The specification comes last: a restore that is killed before it leaves no run, and is repeated."""
    save(run, "checkpoint-1", "step 1")
    with CheckpointStore(uri, 2).uploading(run, 1):
        pass
    other, replace = tmp_path / "other", Path.replace
    other.mkdir()
    moved = list[str]()

    def replace_and_note(source: Path, target: Path) -> Path:
        if target.parent == other:
            moved.append(target.name)
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", replace_and_note)
    CheckpointStore(uri, 2).restore(other)
    assert (set(moved), moved[-1]) == ({each.name for each in run.iterdir()}, SPEC)


def test_a_killed_restore_is_continued_and_leaves_no_copy(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run, "checkpoint-1", "step 1")
    uri = (tmp_path / "store").as_uri()
    with CheckpointStore(uri, 2).uploading(run, 1):
        pass
    (other := tmp_path / "other").mkdir()
    replace, fetched, open_object = Path.replace, list[str](), FileStorage.open

    def stop_at_end(source: Path, target: Path) -> Path:
        if target == other / SPEC:
            raise KeyboardInterrupt
        return replace(source, target)

    def open_and_note(storage: FileStorage, key: str, offset: int = 0) -> io.BufferedReader:
        fetched.append(key)
        return open_object(storage, key, offset)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", stop_at_end)
        with pytest.raises(KeyboardInterrupt):
            CheckpointStore(uri, 2).restore(other)
    monkeypatch.setattr(FileStorage, "open", open_and_note)
    CheckpointStore(uri, 2).restore(other)
    assert files(other) == files(run)
    assert [each for each in other.iterdir() if each.name.startswith(".")] == []
    assert [each for each in fetched if each.endswith(f"/{SPEC}")] == []
    (other / INCOMING).mkdir()
    CheckpointStore(uri, 2).restore(other)
    assert not (other / INCOMING).exists()


def test_a_pruned_end_is_not_uploaded_again(uri: str, run: Path) -> None:
    save(run, "checkpoint-1", "step 1")
    save(run, FINAL, "final")
    with CheckpointStore(uri, 2).uploading(run, 1):
        pass
    (end,) = Store(uri).list(CHECKPOINTS)
    remove_artifact(Store(uri), end)
    with CheckpointStore(uri, 2).uploading(run, 1):
        pass
    assert versions(uri) == []


def test_a_failing_store_does_not_hide_the_error_of_the_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_of_run = CheckpointStore((tmp_path / "store").as_uri(), 2)
    store_of_run._store.publish = Mock(side_effect=UnavailableError("store.unavailable", "it is away"))  # type: ignore[method-assign]
    save(run, "checkpoint-1", "step 1")

    def fail() -> None:
        raise UsageError("settings.unknown-name", "no such setting")

    with raises("settings.unknown-name"), store_of_run.uploading(run, 1):
        fail()
    warned = capsys.readouterr().err
    assert "it is away" in warned
    assert NOT_UPLOADED in warned
    with raises(NOT_UPLOADED, run, "it is away"), store_of_run.uploading(run, 1):
        pass
