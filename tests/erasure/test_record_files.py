"""Erasing records from files of all forms: the rest of a file stays as it was."""

import csv
import gzip
import json
import zlib
from pathlib import Path

import pytest

from gumshoe.erasure.question_links import Links
from gumshoe.erasure.record_files import read_text, redact_file, redact_value, write_redacted
from gumshoe.erasure.target import EraseTarget
from tests.erasure.people import ANN, BOB

TARGET = EraseTarget("inbox", ANN)
OF_ANN, OF_BOB = json.dumps({"inbox_address": ANN}), json.dumps({"inbox_address": BOB})


def erase(path: Path, content: bytes) -> tuple[bytes | None, int]:
    """Return the new content of a file, or None if it is deleted, and the number of erased records."""
    path.write_bytes(content)
    text, count = redact_file(path, TARGET, Links(TARGET))
    write_redacted(path, text)
    return path.read_bytes() if path.exists() else None, count


def test_other_bytes_of_a_file_stay(tmp_path: Path) -> None:
    other = f'{OF_BOB}\r\n{{"x": "\u2028"}}\n'.encode() + b'{"x": "\xff"}\n\nnot JSON \\ud800\n'
    assert erase(tmp_path / "a.jsonl", f"{OF_ANN}\n".encode() + other) == (other, 1)
    assert erase(tmp_path / "b.jsonl", other) == (other, 0)
    assert erase(tmp_path / "c.jsonl", f"{OF_ANN}\n".encode()) == (None, 1)


def test_an_episode_is_erased_with_its_calls_of_foreign_tools(tmp_path: Path) -> None:
    def write(inbox: str) -> str:
        call = {"name": "look_up", "arguments": {"filter": {"inbox": inbox.upper()}}, "id": "1"}
        made = {"call": call, "seconds": 0.5, "is_error": False, "characters": 7}
        return json.dumps({"scenario": "7", "foreign_calls": [made]})

    left = f"{write(BOB)}\n".encode()
    assert erase(tmp_path / "a.jsonl", f"{write(ANN)}\n".encode() + left) == (left, 1)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_a_byte_order_mark_hides_nothing(tmp_path: Path, name: str) -> None:
    content = {"a.jsonl": OF_ANN, "a.json": OF_ANN, "a.csv": f"inbox_address\r\n{ANN}"}[name]
    left, count = erase(tmp_path / name, f"\ufeff{content}\n".encode())
    assert count == 1
    assert ANN.encode() not in (left or b"")


def test_a_document_with_a_lone_surrogate_is_written(tmp_path: Path) -> None:
    left, count = erase(tmp_path / "a.json", f'[{OF_ANN}, {{"x": "\\ud800 é"}}]'.encode())
    assert count == 1
    assert json.loads(left or b"") == [{"x": "\ud800 é"}]


def test_a_table_may_have_long_texts(tmp_path: Path) -> None:
    csv.field_size_limit(1 << 17)  # Python's default
    long = "x" * ((1 << 17) + 1)
    head, row = "inbox_address,answer\r\n", f"{BOB},{long}\r\n"
    assert erase(tmp_path / "a.csv", f"{head}{ANN},{long}\r\n{row}".encode()) == ((head + row).encode(), 1)


def test_a_compressed_file_stays_compressed(tmp_path: Path) -> None:
    left, count = erase(tmp_path / "a.jsonl.gz", gzip.compress(f"{OF_ANN}\n{OF_BOB}\n".encode()))
    assert (gzip.decompress(left or b"").decode(), count) == (f"{OF_BOB}\n", 1)


def test_damage_of_a_compressed_file_is_reported(tmp_path: Path) -> None:
    content = gzip.compress(OF_ANN.encode() * 100)
    for damaged, error in ((content[:-9], EOFError), (content[:12] + b"\xff" * 9 + content[21:], zlib.error)):
        (tmp_path / "a.gz").write_bytes(damaged)
        with pytest.raises(error):
            read_text(tmp_path / "a.gz")


def test_the_permissions_of_a_file_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.touch(0o600)
    erase(path, f"{OF_ANN}\n{OF_BOB}\n".encode())
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_record_stays_without_an_erased_record_inside_it() -> None:
    """The summary of an evaluation has records of several questions."""
    inner = {"scenario": "a", "inbox_address": ANN}
    record = {"scenario": "b", "worst": [inner, {"scenario": "c"}], "best": inner, "texts": ["x"]}
    expected = {"scenario": "b", "worst": [{"scenario": "c"}], "best": "[erased]", "texts": ["x"]}
    assert redact_value(record, TARGET.concerns, TARGET) == (expected, 2)


def test_a_name_in_a_key_is_erased() -> None:
    person = EraseTarget("inbox", ANN, everywhere=True)
    assert redact_value({"by": {ANN: 1, BOB: 2}}, person.concerns, person) == ({"by": {BOB: 2}}, 1)
