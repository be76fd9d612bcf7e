"""Check that nobody else could have written a file that decides who may read what, or where data is sent.

A file is trusted if it belongs to this user or to root, and no other user may write to it. The same holds for each
directory and symbolic link on its way: whoever may write to a directory may replace what is in it. Directories with the
sticky bit, such as /tmp, may be writable by all, because only the owner of an entry can replace it there.

Three cases are common, and allowed. Files of a user with a group of the same name (umask 002) are writable by that
group. Directories that belong to root or to its group may be writable by a group: volumes of Kubernetes with `fsGroup`,
/usr/local, and home directories in images for OpenShift. Directories of root on a read-only file system may have any
mode: Kubernetes mounts ConfigMaps with mode 0777.
"""

import grp
import os
import pwd
import stat
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from gumshoe.errors import UsageError

_ROOT = 0
_MAX_LINKS = 40


class UntrustedFileError(UsageError):
    """Report that another user could have written a file."""


def check_trusted(file: Path, what: str) -> None:
    """Check that only this user and root can write to a file or replace it. `what` names it, e.g. `the key file`.

    Raises:
        UntrustedFileError: if another user can.
        OSError: if the file does not exist or cannot be accessed.
    """
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):  # a pipe, e.g. of `<(command)` in a shell, has no place in a directory
        _check_entry(file, found, file, what)
        return
    for place, entry in _follow(file):
        _check_entry(place, entry, file, what)


def _check_entry(place: Path, entry: os.stat_result, file: Path, what: str) -> None:
    shown = what if place == file else f"{what} {file}"
    if entry.st_uid not in (_ROOT, os.geteuid()):
        raise UntrustedFileError(
            "files.foreign-owner",
            f"{shown} is not trusted: {place} belongs to user {entry.st_uid}; use a file of your own",
        )
    if _is_writable_by_others(place, entry):
        raise UntrustedFileError(
            "files.writable-by-others",
            f"{shown} is not trusted: other users can write to {place} (mode {stat.S_IMODE(entry.st_mode):04o}); run "
            f"chmod go-w {place}",
        )


def _is_writable_by_others(place: Path, entry: os.stat_result) -> bool:
    mode, is_directory = entry.st_mode, stat.S_ISDIR(entry.st_mode)
    if stat.S_ISLNK(mode) or (is_directory and mode & stat.S_ISVTX):  # the mode of a link means nothing
        return False
    if mode & stat.S_IWOTH:
        return not (is_directory and entry.st_uid == _ROOT and _is_read_only(place))
    if not mode & stat.S_IWGRP or (is_directory and _ROOT in (entry.st_uid, entry.st_gid)):
        return False
    return not _is_private_group(entry.st_uid, entry.st_gid)


def _is_read_only(place: Path) -> bool:
    """Return True if nobody can write where this file system is mounted, whatever the modes are."""
    return bool(os.statvfs(place).f_flag & os.ST_RDONLY)


def _is_private_group(user: int, group: int) -> bool:
    """Return True if a group has the name of a user other than root, is the user's own, and has no other members."""
    if user == _ROOT:
        return False
    try:
        owner, found = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    return owner.pw_gid == group and found.gr_name == owner.pw_name and set(found.gr_mem) <= {owner.pw_name}


def _follow(file: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield each directory, each symbolic link and the file, in the order in which the system resolves the path."""
    waiting = deque((Path.cwd() / file).parts[1:])
    place, links = Path("/"), 0
    yield place, place.lstat()
    while waiting:
        part = waiting.popleft()
        if part == "..":
            place = place.parent  # `place` contains no links
            continue
        entry = place / part
        found = entry.lstat()
        yield entry, found
        if not stat.S_ISLNK(found.st_mode):
            place = entry
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(f"{file}: too many symbolic links")
        target = entry.readlink()
        if target.is_absolute():
            place = Path("/")
        waiting.extendleft(reversed([each for each in target.parts if each != "/"]))
