"""Test that a running server follows its key file: new and revoked keys, broken, deleted and untrusted files."""

import errno
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from gumshoe.errors import GumshoeError
from tests.inference.fake_vllm import FakeVLLM
from tests.serving.agent_server import ANN, BOB, ServerFiles, add_key, code_of, question_body, start_server
from tests.test_trusted_files import mount_secret

if TYPE_CHECKING:
    from gumshoe.serving.key_file import KeyFile

UNKNOWN, GONE = "serving.unknown-key", "serving.keys-unavailable"


def open_keys(path: Path) -> "KeyFile":
    from gumshoe.serving.key_file import KeyFile

    return KeyFile(path)


def caller(keys: "KeyFile", key: str) -> str:
    """Return the name of the caller with a key, or the code of the error."""
    from gumshoe.serving.access import UnauthenticatedError

    try:
        return keys.authenticate(key).name
    except (UnauthenticatedError, GumshoeError) as error:
        return error.code


def remove_key(path: Path, name: str) -> None:
    """Remove a key from a file as an editor does: it writes another file and replaces the first one."""
    left = [each for each in yaml.safe_load(path.read_text()) if each["name"] != name]
    other = path.with_suffix(".new")
    other.write_text(yaml.safe_dump(left))
    other.replace(path)


def test_a_new_key_works_and_a_revoked_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    ann = add_key(path, "ann", [ANN])
    keys = open_keys(path)
    bob = add_key(path, "bob", [BOB])
    assert (caller(keys, ann), caller(keys, bob)) == ("ann", "bob")
    remove_key(path, "ann")
    assert (caller(keys, ann), caller(keys, bob)) == (UNKNOWN, "bob")
    remove_key(path, "bob")
    assert path.read_text() == "[]\n"
    assert caller(keys, bob) == UNKNOWN


def test_a_change_of_the_same_size_within_a_tick_of_the_clock_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, stat = tmp_path / "keys.yaml", Path.stat
    ann = add_key(path, "ann", [ANN])
    from gumshoe.serving import key_file

    monkeypatch.setattr(key_file, "_SETTLED", 3600.0)  # however slow this machine is
    keys = open_keys(path)
    before = path.stat()
    assert caller(keys, ann) == "ann"
    path.write_text(path.read_text().replace("name: ann", "name: eve"))
    assert path.stat().st_size == before.st_size
    monkeypatch.setattr(Path, "stat", lambda each, **options: before if each == path else stat(each, **options))
    assert caller(keys, ann) == "eve"


def test_a_file_that_does_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.yaml"
    ann = add_key(path, "ann", [ANN])
    os.utime(path, (1_000_000_000, 1_000_000_000))
    from gumshoe.serving import key_file

    monkeypatch.setattr(key_file, "_SETTLED", -1.0)
    keys = open_keys(path)
    assert caller(keys, ann) == "ann"
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("it was read again"))
    assert caller(keys, ann) == "ann"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("- [", "serving.key-file-invalid-yaml"),
        ("a: 1", "serving.key-file-not-a-list"),
        ("- name: a\n  key: plain\n", "serving.key-file-invalid-key"),
        (yaml.safe_dump([{"name": "a", "sha256": "0" * 64, "inboxes": ["a b"]}]), "serving.invalid-inbox-pattern"),
        (b"\xff", "serving.key-file-invalid-yaml"),
    ],
)
def test_a_broken_file_keeps_the_keys_and_says_so_once(
    content: str | bytes, code: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.yaml"
    ann = add_key(path, "ann", [ANN])
    keys, good = open_keys(path), path.read_bytes()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert [caller(keys, ann) for _ in range(3)] == ["ann"] * 3
    assert caller(keys, "gum_other") == UNKNOWN
    assert not keys.is_current()
    assert caplog.text.count(f"[{code}]") == 1
    path.write_bytes(good)
    assert keys.is_current()


def test_a_file_that_others_can_write_keeps_the_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys.yaml"
    ann = add_key(path, "ann", [ANN])
    keys = open_keys(path)
    path.chmod(0o666)
    eve = "gum_chosen_by_eve"
    from gumshoe.serving.key_file import _hash_key

    path.write_text(yaml.safe_dump([{"name": "eve", "sha256": _hash_key(eve), "inboxes": ["*@*"]}]))
    assert (caller(keys, eve), caller(keys, ann)) == (UNKNOWN, "ann")
    assert not keys.is_current()
    assert "[files.writable-by-others]" in caplog.text


def test_a_file_is_used_again_when_its_directory_was_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file itself does not change, and has not changed for long."""
    from gumshoe.serving import key_file

    monkeypatch.setattr(key_file, "_SETTLED", -1.0)
    path = tmp_path / "keys.yaml"
    add_key(path, "ann", [ANN])
    keys = open_keys(path)
    bob = add_key(path, "bob", [BOB])
    tmp_path.chmod(0o777)
    assert [caller(keys, bob) for _ in range(2)] == [UNKNOWN] * 2
    tmp_path.chmod(0o700)
    assert caller(keys, bob) == "bob"
    assert keys.is_current()


def test_a_file_is_used_again_after_its_file_system_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gumshoe.serving import key_file

    monkeypatch.setattr(key_file, "_SETTLED", -1.0)
    path = tmp_path / "keys.yaml"
    ann = add_key(path, "ann", [ANN])
    keys = open_keys(path)
    assert keys.is_current()
    with monkeypatch.context() as failing:

        def fail(_: Path) -> os.stat_result:
            raise OSError(errno.EIO, "Input/output error")

        failing.setattr(Path, "stat", fail)
        assert not keys.is_current()
        assert caller(keys, ann) == "ann"
    assert keys.is_current()


def test_no_key_is_valid_after_the_file_was_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    path = tmp_path / "keys.yaml"
    ann = add_key(path, "ann", [ANN])
    keys, content = open_keys(path), path.read_bytes()
    path.unlink()
    assert [caller(keys, each) for each in (ann, "gum_other", ann)] == [GONE] * 3
    assert not keys.is_current()
    assert len(caplog.records) == 1
    path.write_bytes(content)
    path.chmod(0o600)
    assert caller(keys, ann) == "ann"
    assert keys.is_current()


def test_an_updated_secret_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    ann = add_key(path, "ann", [ANN])
    content = path.read_text()
    mounted = mount_secret(tmp_path / "mount", content, 0o440)
    keys = open_keys(mounted)
    assert caller(keys, ann) == "ann"
    mount_secret(tmp_path / "mount", content.replace("name: ann", "name: bob"), 0o440, "..2026_11_27_07_00_01.2")
    assert caller(keys, ann) == "bob"
    mount_secret(tmp_path / "mount", "[]", 0o440, "..2026_11_27_07_00_02.3")
    assert caller(keys, ann) == UNKNOWN


@pytest.mark.ci
def test_a_revoked_key_works_no_more_at_a_running_server(place: ServerFiles, model: FakeVLLM, tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    ann, bob = add_key(path, "ann", [ANN]), add_key(path, "bob", [BOB])
    policy = f"vllm:{model.address}#adapter"
    with start_server(place, policy, tmp_path / "log", "--keys", str(path), key=ann) as server:
        assert server.ask().status_code == 200
        remove_key(path, "ann")
        assert code_of(server.ask()) == UNKNOWN
        named = {"Authorization": f"Bearer {bob}"}
        body = question_body(8, inbox_address=BOB)
        assert server.client.post("/invoke", json=body, headers=named).status_code == 200
        assert server.metric("gumshoe_key_file_current") == 1
        path.write_text("- [")
        assert server.metric("gumshoe_key_file_current") == 0
        assert server.client.post("/invoke", json=body, headers=named).status_code == 200
        path.unlink()
        gone = server.client.post("/invoke", json=body, headers=named)
        assert (gone.status_code, code_of(gone), gone.headers["retry-after"]) == (503, GONE, "1")
        assert str(path) not in gone.text


def test_a_key_is_appended_to_a_file_without_a_last_line_end(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    ann = add_key(path, "ann", [ANN])
    path.write_text(path.read_text().rstrip("\n"))
    bob = add_key(path, "bob", [BOB])
    keys = open_keys(path)
    assert (caller(keys, ann), caller(keys, bob)) == ("ann", "bob")
