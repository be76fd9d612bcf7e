"""Test the check of files that decide who may read what: modes, owners, directories and links."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gumshoe import trusted_files
from gumshoe.trusted_files import check_trusted
from tests.conftest import CommandResult
from tests.errors import raises

WHAT = "the key file"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    directory = tmp_path / "place"
    directory.mkdir(mode=0o755)
    found = directory / "keys.yaml"
    found.write_text("[]")
    found.chmod(0o600)
    return found


def become_another_user(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a file or directory to another user, or let the check run as another user."""
    if os.geteuid() == 0:
        os.chown(place, 12345, 12345, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o444, 0o600, 0o640, 0o644])
def test_a_file_that_only_its_owner_can_write_is_trusted(mode: int, file: Path) -> None:
    file.chmod(mode)
    check_trusted(file, WHAT)


@pytest.mark.parametrize("mode", [0o602, 0o622, 0o646, 0o666, 0o777, 0o002])
def test_a_file_that_others_can_write_is_not(mode: int, file: Path) -> None:
    file.chmod(mode)
    with raises("files.writable-by-others", file, f"{mode:04o}"):
        check_trusted(file, WHAT)


@pytest.mark.parametrize("mode", [0o620, 0o660, 0o664])
def test_a_group_may_write_only_if_it_is_the_user_s_own(mode: int, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.chmod(mode)
    monkeypatch.setattr(trusted_files, "_is_private_group", lambda *_: False)
    with raises("files.writable-by-others", file):
        check_trusted(file, WHAT)
    monkeypatch.setattr(trusted_files, "_is_private_group", lambda *_: True)
    check_trusted(file, WHAT)


def test_a_private_group_has_the_user_s_name_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd

    def set_up(group: str, members: list[str], primary: int = 1000) -> bool:
        user = pwd.struct_passwd(("ann", "x", 1000, primary, "", "/", "/bin/sh"))
        monkeypatch.setattr(pwd, "getpwuid", lambda _: user)
        monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group((group, "x", 1000, members)))
        return trusted_files._is_private_group(1000, 1000)

    assert set_up("ann", [])
    assert set_up("ann", ["ann"])
    assert not set_up("ann", ["ann", "bob"])
    assert not set_up("staff", [])
    assert not set_up("ann", [], primary=50)
    assert not trusted_files._is_private_group(0, 0), "in containers, users of any number belong to the group of root"


def test_a_file_of_another_user_is_not_trusted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become_another_user(file, monkeypatch)
    with raises("files.foreign-owner", file):
        check_trusted(file, WHAT)


def test_a_directory_of_another_user_is_not_trusted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become_another_user(file.parent, monkeypatch)
    with raises("files.foreign-owner", file):
        check_trusted(file, WHAT)


@pytest.mark.parametrize(("mode", "is_trusted"), [(0o755, True), (0o1777, True), (0o777, False), (0o757, False)])
def test_a_directory_that_all_can_write_needs_the_sticky_bit(mode: int, is_trusted: bool, file: Path) -> None:
    file.parent.chmod(mode)
    if is_trusted:
        check_trusted(file, WHAT)
    else:
        with raises("files.writable-by-others", file, file.parent):
            check_trusted(file, WHAT)


def test_the_place_of_a_link_and_its_target_count(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    link = shared / "link.yaml"
    link.symlink_to(file)
    check_trusted(link, WHAT)
    shared.chmod(0o777)
    with raises("files.writable-by-others", shared):
        check_trusted(link, WHAT)
    shared.chmod(0o1777)
    check_trusted(link, WHAT)
    file.chmod(0o666)
    with raises("files.writable-by-others", file):
        check_trusted(link, WHAT)
    file.chmod(0o600)
    (tmp_path / "relative").symlink_to("shared/../place")
    check_trusted(tmp_path / "relative" / ".." / "place" / "keys.yaml", WHAT)
    become_another_user(link, monkeypatch)
    with raises("files.foreign-owner"):
        check_trusted(link, WHAT)


def test_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises((OSError, RuntimeError)):
        check_trusted(tmp_path / "a", WHAT)


def mount_secret(place: Path, content: str, mode: int, version: str = "..2026_11_27_07_00_00.1") -> Path:
    """Write a file as the kubelet mounts a Secret for a pod with `fsGroup`, and return its path.

    The mount is writable by all with the sticky bit. Its data is in a directory that a link names, which is replaced.
    """
    place.mkdir(exist_ok=True)
    place.chmod(0o3777)
    data = place / version
    data.mkdir()
    (data / "keys.yaml").write_text(content)
    (data / "keys.yaml").chmod(mode)
    data.chmod(0o2755)
    if os.geteuid() == 0:
        for each in (place, data, data / "keys.yaml"):
            os.chown(each, 0, 10001)
    (place / "..data_tmp").symlink_to(version)
    (place / "..data_tmp").replace(place / "..data")
    if not (place / "keys.yaml").is_symlink():
        (place / "keys.yaml").symlink_to("..data/keys.yaml")
    return place / "keys.yaml"


@pytest.mark.parametrize("mode", [0o440, 0o400, 0o644])
def test_a_mounted_secret_is_trusted(mode: int, tmp_path: Path) -> None:
    check_trusted(mount_secret(tmp_path / "mount", "[]", mode), WHAT)


def test_a_volume_with_a_group_is_trusted_if_its_directories_belong_to_root(file: Path) -> None:
    file.parent.chmod(0o2775)
    if os.geteuid() == 0:
        os.chown(file.parent, 0, 10001)
        check_trusted(file, WHAT)


def test_a_config_map_is_trusted_because_it_is_mounted_read_only(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory has the mode 0777, without the sticky bit."""
    file.parent.chmod(0o777)
    with raises("files.writable-by-others", file.parent):
        check_trusted(file, WHAT)
    mounted = os.statvfs_result((0, 0, 0, 0, 0, 0, 0, 0, os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: mounted)
    if os.geteuid() == 0:
        check_trusted(file, WHAT)
        os.chown(file.parent, 12345, 12345)
    with raises("files.foreign-owner" if os.geteuid() == 0 else "files.writable-by-others", file.parent):
        check_trusted(file, WHAT)
    file.chmod(0o666)
    with raises("files.foreign-owner" if os.geteuid() == 0 else "files.writable-by-others"):
        check_trusted(file, WHAT)


def test_a_directory_of_the_group_of_root_is_trusted(file: Path) -> None:
    file.parent.chmod(0o770)
    if os.geteuid() == 0:
        os.chown(file.parent, os.geteuid(), 0)
        check_trusted(file, WHAT)


def test_a_pipe_is_trusted_by_its_owner() -> None:
    reading, writing = os.pipe()
    try:
        check_trusted(Path(f"/dev/fd/{reading}"), WHAT)
    finally:
        os.close(reading)
        os.close(writing)


# The command line.

Run = Callable[..., CommandResult]


def test_a_dotenv_file_that_others_can_write_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("GUMSHOE_STORE=from-dotenv\n")
    (tmp_path / ".env").chmod(0o666)
    ran = run("artifacts", "list")
    assert (ran.status, ran.code) == (2, "files.writable-by-others")
    assert str(tmp_path / ".env") in ran.err


def test_a_dotenv_file_above_the_working_directory_decides_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (tmp_path / ".env").write_text("GUMSHOE_SERVE__ACCESS__OPEN=true\nGUMSHOE_STORE=from-dotenv\n")
    monkeypatch.chdir(below)
    ran = run("serve", "--index", tmp_path, "--policy", "chat:x", "--port", 0)
    assert (ran.status, ran.code) == (2, "serving.invalid-settings"), ran.err
    assert "GUMSHOE_SERVE__ACCESS__OPEN" not in os.environ
    assert "from-dotenv" not in run("artifacts", "list").err


def test_a_settings_file_that_others_can_write_is_refused(run: Run, file: Path) -> None:
    file.write_text("access: {open: true}")
    file.chmod(0o666)
    ran = run("serve", "--index", file.parent, "--policy", "chat:x", "--port", 0, "--config", file)
    assert (ran.status, ran.code) == (2, "files.writable-by-others"), ran.err
    assert str(file) in ran.err


def test_a_key_file_is_not_created_where_others_can_replace_it(run: Run, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    ran = run("serve-key", shared / "keys.yaml", "ann", "--inbox", "ann@example.com")
    assert (ran.status, ran.code) == (2, "files.writable-by-others"), ran.err
    assert ran.out == ""
    assert (shared / "keys.yaml").read_text() == ""


def test_a_key_file_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "none" / "keys.yaml"
    ran = run("serve-key", missing, "ann", "--inbox", "ann@example.com")
    assert (ran.status, ran.code) == (2, "serving.key-file-unwritable"), ran.err
    assert str(missing) in ran.err


def test_a_key_is_not_added_to_a_file_that_others_can_write(run: Run, file: Path) -> None:
    file.chmod(0o666)
    ran = run("serve-key", file, "ann", "--inbox", "ann@example.com")
    assert (ran.status, ran.code) == (2, "files.writable-by-others"), ran.err
    assert file.read_text() == "[]"
    from gumshoe.serving.key_file import read_keys

    with raises("files.writable-by-others", file):
        read_keys(file)
