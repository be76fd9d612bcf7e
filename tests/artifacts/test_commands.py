"""`gumshoe artifacts`: output, exit statuses, and no tracebacks."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.store import Store
from gumshoe.cli import main
from tests.artifacts.fault_proxy import Elapsed
from tests.artifacts.files import SMALL, gumshoe, overwrite, read_files, stored_key, write_files
from tests.conftest import CommandResult, find_free_port


class Finished(CommandResult):
    """A finished command and its output, optionally parsed as JSON."""

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "Run":
    """Return a runner of `gumshoe artifacts ...` in an empty directory, without a store in the environment."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    for name in ("GUMSHOE_STORE", "GUMSHOE_IMAGE"):
        monkeypatch.setenv(name, "")  # so that what a .env file sets is unset after the test
        monkeypatch.delenv(name)
    return Run(capsys)


@dataclass
class Run:
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str | Path) -> Finished:
        with pytest.raises(SystemExit) as finished:
            main(["artifacts", *map(str, arguments)])
        out, err = self.capsys.readouterr()
        assert "Traceback" not in err
        code = finished.value.code
        assert isinstance(code, int)
        return Finished(code, out, err)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_files(tmp_path / "source", SMALL)


@pytest.fixture
def published(store: Store, source: Path) -> Store:
    """Return a store with adapters/1, made from datasets/1."""
    store.publish(source, "datasets", "1")
    store.publish(source, "adapters", "1", made_from=["datasets/1"], settings={"lr": "1e-5"})
    return store


def test_publish_and_fetch_by_hand(run: Run, store_uri: str, source: Path, tmp_path: Path) -> None:
    publish = ("publish", source, "--store", store_uri, "--kind", "adapters", "--version", "1")
    first = run(*publish, "--made-from", "datasets/1", "--setting", "lr=1e-5", "--setting", "note=a=b")
    assert (first.status, first.err) == (0, "")
    assert "Published adapters/1, 4 files" in first.out
    assert "Already published: adapters/1" in run(*publish).out
    fetched = run("fetch", "adapters/latest", "--store", store_uri, "--out", tmp_path / "out")
    assert (fetched.status, fetched.err) == (0, "")
    assert "verified; 10.3 kB downloaded" in fetched.out
    assert read_files(tmp_path / "out") == SMALL
    again = run("fetch", "adapters/1", "--store", store_uri, "--out", tmp_path / "out")
    assert "nothing to download" in again.out


def test_publish_prints_json(run: Run, store_uri: str, source: Path) -> None:
    publish = ("publish", source, "--store", store_uri, "--kind", "adapters", "--version", "1", "--json")
    first = run(*publish, "--setting", "note=a=b", "--image", "agent:1").json
    assert first["created"] is True
    assert first["manifest"]["settings"] == {"note": "a=b"}
    assert first["manifest"]["image"] == "agent:1"
    assert run(*publish).json == {"created": False, "manifest": first["manifest"]}


def test_no_latest_leaves_the_latest_unchanged(run: Run, published: Store, source: Path) -> None:
    finished = run("publish", source, "--store", published.uri, "--kind", "adapters", "--version", "2", "--no-latest")
    assert finished.status == 0
    assert published.latest("adapters") == "1"


def test_fetch_prints_json(run: Run, published: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finished = run("fetch", "adapters/1", "--store", published.uri, "--out", out, "--json")
    assert finished.json == {"reference": "adapters/1", "directory": str(out), "downloaded_bytes": 10281}


def test_list_shows_what_was_published(run: Run, published: Store) -> None:
    finished = run("list", "--store", published.uri)
    assert finished.status == 0
    assert "adapters/1" in finished.out
    assert "datasets/1" in finished.out
    listed = run("list", "--store", published.uri, "--json").json
    assert [each["version"] for each in listed] == ["1", "1"]
    assert [each["kind"] for each in run("list", "adapters", "--store", published.uri, "--json").json] == ["adapters"]
    nothing = run("list", "models", "--store", published.uri)
    assert (nothing.status, nothing.out) == (0, "")
    assert published.uri in nothing.err
    assert "models" in nothing.err
    assert run("list", "models", "--store", published.uri, "--json").json == []


def test_show_prints_an_artifact_and_its_lineage(run: Run, published: Store) -> None:
    finished = run("show", "adapters/latest", "--store", published.uri)
    assert finished.status == 0
    for words in ("adapters/1", "lr", "1e-5", "config/adapter.json", "datasets/1"):
        assert words in finished.out
    data = published.manifest("adapters/1").data
    assert f"{published.uri}/adapters/1/{data}/" in finished.out.splitlines()
    shown = run("show", "adapters/1", "--store", published.uri, "--json").json
    assert shown["manifest"] == published.manifest("adapters/1").model_dump(mode="json")
    assert shown["lineage"] == {
        "reference": "adapters/1",
        "in_store": True,
        "made_from": [{"reference": "datasets/1", "in_store": True, "made_from": []}],
    }


def test_markup_in_names_and_settings_is_escaped(run: Run, store: Store, tmp_path: Path) -> None:
    source = write_files(tmp_path / "[bold]source[/]", {"[/red].txt": b"1", "esc\x1b[31m.txt": b"2"})
    store.publish(source, "a", "1", settings={"[stop]": "[/INST]", "esc": "\x1b[31m"}, image="[/x]")
    shown = run("show", "a/1", "--store", store.uri)
    assert shown.status == 0
    for words in ("[/red].txt", "[stop]", "[/INST]", "[/x]"):
        assert words in shown.out
    assert "\x1b" not in shown.out
    out = tmp_path / "[/]"
    assert "[/]" in run("fetch", "a/1", "--store", store.uri, "--out", out).out
    (out / "[/red].txt").write_bytes(b"?")
    finished = run("verify", "--dir", out)
    assert finished.status == 3
    assert finished.code == "artifacts.verification-failed"
    assert "[/red].txt: " in finished.err


def test_verify_exits_with_3_if_something_is_damaged(run: Run, published: Store, tmp_path: Path) -> None:
    verify = ("verify", "adapters/1", "--store", published.uri)
    assert run(*verify).status == 0
    assert run(*verify, "--json").json == {"artifact": "adapters/1", "damaged": {}}
    overwrite(published, stored_key(published, "adapters/1", "notes.txt"), b"other", tmp_path)
    finished = run(*verify)
    assert (finished.status, finished.out, finished.code) == (3, "", "artifacts.verification-failed")
    assert "notes.txt: " in finished.err
    assert "adapters/1 is damaged: 1 " in finished.err
    as_json = run(*verify, "--json")
    assert as_json.status == 3
    assert as_json.json["damaged"] == {"notes.txt": "its SHA-256 differs"}


def test_verify_checks_a_fetched_directory(run: Run, published: Store, tmp_path: Path) -> None:
    published.fetch("adapters/1", tmp_path / "out")
    assert run("verify", "--dir", tmp_path / "out").status == 0
    (tmp_path / "out" / "notes.txt").unlink()
    (tmp_path / "out" / "config" / "adapter.json").write_bytes(b"")
    finished = run("verify", "--dir", tmp_path / "out", "--json")
    assert finished.status == 3
    assert finished.json["damaged"] == {"notes.txt": "missing", "config/adapter.json": "0 bytes instead of 13"}


def test_prune_removes_only_with_yes(run: Run, published: Store, source: Path) -> None:
    published.publish(write_files(source, {"notes.txt": b"new"}), "adapters", "2")
    prune = ("prune", "--store", published.uri, "--keep", "1", "--older-than", "0")
    listing = run(*prune)
    assert listing.status == 0
    assert "would remove adapters/1" in listing.out
    assert "add --yes" in listing.out
    assert run(*prune, "--json").json == {
        "dry_run": True,
        "removed": ["adapters/1"],
        "kept": {"adapters/2": "the latest", "datasets/1": "the latest"},
        "leftover_files": 0,
        "outputs": [],
    }
    assert len(published.list()) == 3
    done = run(*prune, "--yes", "--json").json
    assert (done["dry_run"], done["removed"]) == (False, ["adapters/1"])
    assert len(published.list()) == 2


def test_remove_deletes_what_is_named_even_if_others_were_made_from_it(
    run: Run, published: Store, source: Path
) -> None:
    published.publish(write_files(source, {"notes.txt": b"2"}), "adapters", "2", made_from=["adapters/1"])
    published.publish(write_files(source, {"notes.txt": b"3"}), "adapters", "3", made_from=["adapters/2"])
    published.publish(write_files(source, {"notes.txt": b"4"}), "adapters", "4")
    remove = ("remove", "adapters/1", "adapters/latest", "adapters/4", "--store", published.uri)
    before = len(published.list())
    listing = run(*remove)
    assert listing.status == 0
    assert "would remove adapters/1" in listing.out
    assert "kept adapters/2: made from adapters/1" in listing.out
    assert "add --yes" in listing.out
    assert run(*remove[:2], "adapters/9", *remove[-2:], "--yes").code == "artifacts.not-found"
    assert len(published.list()) == before
    assert run(*remove, "--yes", "--json").json == {
        "dry_run": False,
        "removed": ["adapters/1", "adapters/4"],
        "descendants": ["adapters/2", "adapters/3"],
    }
    assert len(published.list()) == before - 2
    assert published.latest("adapters") == "3"
    assert not [each.key for each in published.storage.entries("adapters/1/") if "sha256-" in each.key]


@pytest.mark.parametrize(
    ("status", "code", "value", "typed"),
    [
        (1, "artifacts.not-found", "adapters/2", "fetch adapters/2 --store STORE --out OUT"),
        (1, "artifacts.nothing-published", "models", "show models/latest --store STORE"),
        (1, "artifacts.not-found", "adapters/2", "verify adapters/2 --store STORE"),
        (
            2,
            "artifacts.version-taken",
            "adapters/1",
            "publish SOURCE/config --store STORE --kind adapters --version 1",
        ),
        (2, "artifacts.not-a-directory", "OUT", "publish OUT --store STORE --kind adapters --version 2"),
        (2, "artifacts.invalid-name", "'latest'", "publish SOURCE --store STORE --kind adapters --version latest"),
        (2, "artifacts.invalid-name", "'..'", "publish SOURCE --store STORE --kind ../x --version 1"),
        (2, "artifacts.invalid-name", "'..'", "list ../x --store STORE"),
        (2, "artifacts.invalid-name", "'..'", "prune --kind ../x --store STORE"),
        (2, "artifacts.invalid-setting", "'x'", "publish SOURCE --store STORE --kind a --version 1 --setting x"),
        (2, "artifacts.invalid-setting", "'=x'", "publish SOURCE --store STORE --kind a --version 1 --setting =x"),
        (2, "artifacts.invalid-retention", "'reports'", "prune --store STORE --retention reports"),
        (2, "artifacts.invalid-retention", "'reports=x'", "prune --store STORE --retention reports=x"),
        (2, "artifacts.destination-exists", "SOURCE", "fetch adapters/1 --store STORE --out SOURCE"),
        (2, "artifacts.invalid-reference", "'adapters'", "fetch adapters --store STORE --out OUT"),
        (2, "store.unknown-scheme", "'ftp'", "list --store ftp://host/x"),
        (2, "artifacts.unclear-target", "--dir", "verify"),
        (2, "artifacts.unclear-target", "--dir", "verify adapters/1"),
        (2, "artifacts.unclear-target", "--dir", "verify adapters/1 --store STORE --dir OUT"),
        (2, "artifacts.not-an-artifact", "OUT", "verify --dir OUT"),
        (2, "cli.usage", "--store", "list"),
        (2, "cli.usage", "--keep", "prune --store STORE --keep 0"),
        (1, "artifacts.not-found", "adapters/2", "remove adapters/2 --store STORE"),
        (2, "artifacts.invalid-reference", "'adapters'", "remove adapters --store STORE"),
        (2, "cli.usage", "KIND/VERSION", "remove --store STORE"),
        (75, "store.deadline-exceeded", "0.0001", "fetch adapters/1 --store STORE --out OUT --deadline 0.0001"),
        (
            75,
            "store.deadline-exceeded",
            "0.0001",
            "publish SOURCE --store STORE --kind a --version 1 --deadline 0.0001",
        ),
    ],
)
def test_each_error_has_its_status_and_code(
    run: Run, tmp_path: Path, source: Path, status: int, code: str, value: str, typed: str
) -> None:
    store = Store(str(tmp_path / "store"))
    store.publish(source, "adapters", "1")
    places = {"STORE": store.uri, "SOURCE": str(source), "OUT": str(tmp_path / "out")}
    arguments = typed.split()
    for place, path in places.items():
        arguments = [argument.replace(place, path) for argument in arguments]
    finished = run(*arguments)
    assert (finished.status, finished.out, finished.code) == (status, "", code)
    assert places.get(value, value) in finished.err
    assert not (tmp_path / "out").exists()


def test_an_unreachable_server_exits_with_75(
    run: Run, aws_environment: pytest.MonkeyPatch, elapsed: Elapsed, tmp_path: Path
) -> None:
    aws_environment.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{find_free_port()}")
    finished = run("fetch", "adapters/1", "--store", "s3://bucket/x", "--out", tmp_path / "out")
    assert (finished.status, finished.out, finished.code) == (75, "", "store.unreachable")
    assert elapsed.pauses, "it is retried"
    assert "s3://bucket/x/adapters/1/manifest.json" in finished.err
    assert "AWS_ENDPOINT_URL" in finished.err


def test_corrupt_bytes_exit_with_1(run: Run, published: Store, tmp_path: Path) -> None:
    overwrite(published, stored_key(published, "adapters/1", "notes.txt"), b"other", tmp_path)
    finished = run("fetch", "adapters/1", "--store", published.uri, "--out", tmp_path / "out")
    assert (finished.status, finished.out, finished.code) == (1, "", "artifacts.damaged-in-store")
    assert "notes.txt" in finished.err


def test_the_store_may_come_from_the_environment(run: Run, published: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUMSHOE_STORE", published.uri)
    assert len(run("list", "--json").json) == 2
    assert run("verify", "adapters/1").status == 0


def test_the_store_may_come_from_a_dotenv_file_here_but_not_above(
    run: Run, published: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text(f"GUMSHOE_STORE={published.uri}\n")
    below = tmp_path / "below"
    below.mkdir()
    monkeypatch.chdir(below)
    assert run("list", "--json").json["error"]["code"] == "cli.usage"
    monkeypatch.chdir(tmp_path)
    assert len(run("list", "--json").json) == 2
    monkeypatch.setenv("GUMSHOE_STORE", str(tmp_path / "nothing here"))
    assert run("list", "--json").json == []  # what is set already wins


def test_a_real_process_prints_no_traceback(source: Path, tmp_path: Path) -> None:
    published = Store(str(tmp_path / "store"))
    published.publish(source, "adapters", "1")
    overwrite(published, stored_key(published, "adapters/1", "notes.txt"), b"other", tmp_path)
    process = gumshoe("verify", "adapters/1", "--store", published.uri, "--json")
    out, err = process.communicate()
    assert process.returncode == 3
    assert json.loads(out)["damaged"] == {"notes.txt": "its SHA-256 differs"}
    assert "adapters/1" in err
    assert err.endswith("[artifacts.verification-failed]\n")
    assert "Traceback" not in err
