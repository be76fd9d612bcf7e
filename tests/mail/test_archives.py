"""Archives of mail: read like directories, with limits."""

import gzip
import io
import random
import tarfile
import zipfile
from pathlib import Path

import pytest

from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.mail import archives
from gumshoe.mail.message import ParsedMessage
from gumshoe.mail.sources import open_source
from tests.errors import raises
from tests.mail.test_mail_directory import mail, mbox, read

TAKEOUT = {
    "Takeout/Mail/All mail Including Spam and Trash.mbox": mbox(1, 2),
    "Takeout/Mail/Spam.mbox": mbox(3),
    "Takeout/archive_browser.html": b"<html>",
    "Takeout/Mail/User Settings/Filters.json": b"{}",
    "__MACOSX/Takeout/Mail/._Spam.mbox": b"\0\5",
}


def pack(place: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(place, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return place


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_of_google_takeout_is_read(method: int, tmp_path: Path) -> None:
    place = pack(tmp_path / "takeout-1.zip", TAKEOUT, method)
    assert read(f"mbox:{place}") == ([("1", ""), ("2", ""), ("3", "spam")], [])
    first = next(iter(open_source(f"mbox:{place}").read_raw(lambda _: None)))
    assert not isinstance(first, UnreadableItem)
    assert first.where == f"{place}/Takeout/Mail/All mail Including Spam and Trash.mbox#1"


def test_messages_in_an_archive_are_read(tmp_path: Path) -> None:
    place = pack(tmp_path / "mail.ZIP", {"a/1.eml": mail(1), "b/Trash/2.eml": mail(2), "cur/3:2,T": mail(3)})
    assert read(f"eml:{place}") == ([("1", ""), ("2", "trash")], [])
    assert read(f"maildir:{place}")[0] == [("1", ""), ("2", "trash"), ("3", "deleted")]


def test_an_archive_on_s3_is_read(s3_bucket: str, tmp_path: Path) -> None:
    import boto3

    place = pack(tmp_path / "takeout.zip", TAKEOUT)
    boto3.client("s3").put_object(Bucket=s3_bucket, Key="takeout.zip", Body=place.read_bytes())
    assert read(f"mbox:s3://{s3_bucket}/takeout.zip") == read(f"mbox:{place}")


def test_a_damaged_member_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    place = pack(tmp_path / "x.zip", {"a.mbox": mbox(1), "b.mbox": mbox(2), "c.mbox": mbox(3)}, zipfile.ZIP_STORED)
    place.write_bytes(place.read_bytes().replace(b"<2@", b"<9@"))
    items = list(open_source(f"mbox:{place}").read(lambda _: None))
    assert [item.subject for item in items if isinstance(item, ParsedMessage)][:1] == ["1"]
    assert [item.subject for item in items if isinstance(item, ParsedMessage)][-1:] == ["3"]
    assert [(item.where, item.reason) for item in items if isinstance(item, UnreadableItem)] == [
        (f"{place}/b.mbox", "damaged file")
    ]
    place = pack(tmp_path / "y.zip", {"1.eml": mail(1), "2.eml": mail(2)}, zipfile.ZIP_STORED)
    place.write_bytes(place.read_bytes().replace(b"<2@", b"<9@"))
    assert read(f"eml:{place}") == ([("1", "")], [(f"{place}/2.eml", "cannot be opened")])


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("form", ["mbox", "eml"])
def test_damage_of_any_packing_is_reported(method: int, form: str, tmp_path: Path) -> None:
    names = [f"{number}.{form}" for number in (1, 2)]
    data = (mbox if form == "mbox" else mail)(2) + random.Random(1).randbytes(5_000).hex().encode()
    place = pack(tmp_path / "x.zip", {names[0]: data, names[1]: (mbox if form == "mbox" else mail)(3)}, method)
    with zipfile.ZipFile(place) as archive:
        start = archive.getinfo(names[0]).header_offset + 60
    raw = bytearray(place.read_bytes())
    raw[start : start + 2_000] = b"\xff" * 2_000
    place.write_bytes(raw)
    items = list(open_source(f"{form}:{place}").read(lambda _: None))
    assert [item.subject for item in items if isinstance(item, ParsedMessage)][-1:] == ["3"]
    assert f"{place}/{names[0]}" in {item.where for item in items if isinstance(item, UnreadableItem)}


def test_an_archive_with_two_files_of_one_name_is_rejected(tmp_path: Path) -> None:
    place = pack(tmp_path / "x.zip", {"a.mbox": mbox(1)})
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(place, "a") as archive:
        archive.writestr("a.mbox", mbox(2))
    with raises("mail.unreadable-archive", f"mbox:{place}"):
        open_source(f"mbox:{place}")


def test_an_archive_that_unpacks_to_too_much_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_FREE_SIZE", 1 << 20)
    place = pack(tmp_path / "bomb.zip", {"a.mbox": mbox(1) + b"\0" * (5 << 20)})
    with raises("mail.unreadable-archive", f"mbox:{place}"):
        open_source(f"mbox:{place}")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"not a zip"])
def test_a_file_that_is_not_an_archive_is_rejected(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(data)
    for kind in ("mbox", "eml", "maildir"):
        with raises("mail.unreadable-archive", f"{kind}:{tmp_path / 'x.zip'}"):
            open_source(f"{kind}:{tmp_path / 'x.zip'}")


def test_an_encrypted_archive_is_rejected(tmp_path: Path) -> None:
    place = pack(tmp_path / "x.zip", {"a.mbox": mbox(1)}, zipfile.ZIP_STORED)
    data = bytearray(place.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    place.write_bytes(data)
    with raises("mail.unreadable-archive", f"mbox:{place}"):
        open_source(f"mbox:{place}")


def test_a_missing_archive_is_reported(tmp_path: Path) -> None:
    with raises("store.not-found", f"mbox:{tmp_path / 'x.zip'}"):
        open_source(f"mbox:{tmp_path / 'x.zip'}")


def pack_tar(place: Path, *members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(place, "w:gz") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(data), kind
            archive.addfile(info, io.BytesIO(data))
    return place


@pytest.mark.parametrize("name", ["takeout-1.tgz", "mail.TAR.GZ"])
def test_a_tar_archive_is_read_like_a_zip_archive(name: str, tmp_path: Path) -> None:
    place = pack_tar(tmp_path / name, *TAKEOUT.items())
    assert read(f"mbox:{place}") == ([("1", ""), ("2", ""), ("3", "spam")], [])
    first = next(iter(open_source(f"mbox:{place}").read_raw(lambda _: None)))
    assert not isinstance(first, UnreadableItem)
    assert first.where == f"{place}/Takeout/Mail/All mail Including Spam and Trash.mbox#1"
    place = pack_tar(tmp_path / f"2{name}", ("b/Trash/2.eml", mail(2)), ("a/1.eml", mail(1)), ("/../3.eml", mail(3)))
    assert read(f"eml:{place}")[0] == [("2", "trash"), ("1", ""), ("3", "")]


@pytest.mark.ci
def test_the_files_of_an_archive_at_a_uri_keep_their_content(tmp_path: Path) -> None:
    files = {f"{number:03}.eml": mail(number) + random.Random(number).randbytes(3000) for number in range(300)}
    for place in (pack_tar(tmp_path / "x.tgz", *files.items()), pack(tmp_path / "x.zip", files)):
        assert read(f"eml:file://{place}")[0] == [(str(number), "") for number in range(300)]


def test_only_files_of_a_tar_archive_are_read(tmp_path: Path) -> None:
    place = tmp_path / "x.tgz"
    with tarfile.open(place, "w:gz") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE):
            info = tarfile.TarInfo(f"{kind.decode()}.eml")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        for name in ("1.eml", "__MACOSX/1.eml"):
            info = tarfile.TarInfo(name)
            info.size = len(mail(1))
            archive.addfile(info, io.BytesIO(mail(1)))
    assert read(f"eml:{place}") == ([("1", "")], [])


def test_large_files_of_a_tar_archive_are_read_in_pieces(tmp_path: Path) -> None:
    large = mail(1) + random.Random(1).randbytes(3 << 20)
    archive, entries = archives.open_archive("x", str(pack_tar(tmp_path / "x.tgz", ("1.eml", large))))
    with archive.open(entries[0].key) as file:
        assert file.read(4 << 20) == large


def build_header(size: int, kind: str) -> bytes:
    """Return the header of a file in a tar archive, of any size."""
    info = tarfile.TarInfo(f"{size}{kind}.eml")
    info.type = kind.encode()
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" + size.to_bytes(11, "big", signed=True) if size < 0 else header[124:136]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def test_a_damaged_or_oversized_tar_archive_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = pack_tar(tmp_path / "good.tgz", ("a.eml", mail(1) + random.Random(1).randbytes(100_000))).read_bytes()
    twice = pack_tar(tmp_path / "twice.tgz", ("a.eml", mail(1)), ("a.eml", mail(2))).read_bytes()
    big = pack_tar(tmp_path / "big.tgz", ("a.eml", bytes(5 << 20))).read_bytes()
    header = tarfile.TarInfo("a")
    header.type, header.size = tarfile.XHDTYPE, 2 << 20
    name = gzip.compress(header.tobuf() + bytes(3 << 20))
    monkeypatch.setattr(archives, "_FREE_SIZE", 4 << 20)
    place = tmp_path / "x.tgz"
    for data in (b"", b"\x1f\x8b", b"none", gzip.compress(b"x" * 2000), good[:50_000], twice, big):
        place.write_bytes(data)
        with raises("mail.unreadable-archive", f"eml:{place}"):
            open_source(f"eml:{place}")
    place.write_bytes(name)
    with raises("mail.unreadable-archive", f"eml:{place}", 2 << 20):
        open_source(f"eml:{place}")
    backwards = gzip.compress(b"".join(map(build_header, (0, 0, -1024), "050")) + bytes(1024))
    hidden = gzip.compress(b"".join(map(build_header, (0, 0, -1024), "05S")) + bytes(1024))
    for data in (backwards, hidden):
        place.write_bytes(data)
        with raises("mail.unreadable-archive", f"eml:{place}", "negative"):
            open_source(f"eml:{place}")
    monkeypatch.setattr(archives, "_MAX_FILES", 1)
    place = pack_tar(place, ("a.eml", mail(1)), ("b.eml", mail(2)))
    with raises("mail.unreadable-archive", f"eml:{place}"):
        open_source(f"eml:{place}")
