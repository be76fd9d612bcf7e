"""Building an index: what is skipped and counted, and that the index appears only when complete."""

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from gumshoe.artifacts.private_data import MARK
from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.artifacts.storage import lock_directory
from gumshoe.mail import index_build, message_preparer, segment_rewriter, source_batches
from gumshoe.mail.build import build_mail_index, extend_mail_index
from gumshoe.mail.build_report import MailBuildOptions, MailBuildReport
from gumshoe.mail.index import MailIndex
from gumshoe.mail.items import RawItem, RawLine, RawRecord
from gumshoe.mail.message_preparer import BatchPreparer
from gumshoe.mail.prepared_messages import PreparedMessage
from gumshoe.mail.schema import FILE_NAME, VERSION, read_state
from tests.errors import raises
from tests.kills import run_program
from tests.mail.mailbox import KEEP_ALL, make_index, record, write_jsonl

BOB = "bob@example.com"

RECORDS = [
    record(1, body="x" * 5000),
    record(2, body="x" * 5001),
    record(
        3, to=[f"p{number}@example.com" for number in range(20)], cc=[f"c{number}@example.com" for number in range(10)]
    ),
    record(
        4, to=[f"p{number}@example.com" for number in range(20)], bcc=[f"b{number}@example.com" for number in range(11)]
    ),
    record(5, subject="again", body="same"),
    record(6, subject="again", body="same", to=["carol@example.com"]),
    record(7, subject="again", body="same", sender="eve@example.com"),
    record(8, date=None, message_id=None),
]


def test_skipped_messages_are_counted_by_reason(tmp_path: Path) -> None:
    report = build_mail_index([write_jsonl(tmp_path / "m.jsonl", RECORDS)], tmp_path / "index")
    assert report.kept_out == {"long body": 1, "many recipients": 1, "duplicate": 1}
    assert (report.read, report.messages, report.without_date, report.without_id) == (8, 5, 1, 1)


@pytest.mark.parametrize(
    ("options", "kept_out"),
    [
        (MailBuildOptions(max_body=None), {"many recipients": 1, "duplicate": 1}),
        (MailBuildOptions(max_recipients=None), {"long body": 1, "duplicate": 1}),
        (MailBuildOptions(drop_duplicates=False), {"long body": 1, "many recipients": 1}),
        (MailBuildOptions(max_body=4999), {"long body": 2, "many recipients": 1, "duplicate": 1}),
        (KEEP_ALL, {}),
    ],
)
def test_each_limit_has_its_option(tmp_path: Path, options: MailBuildOptions, kept_out: dict[str, int]) -> None:
    report = build_mail_index([write_jsonl(tmp_path / "m.jsonl", RECORDS)], tmp_path / "index", options)
    assert report.kept_out == kept_out
    assert report.messages == len(RECORDS) - sum(kept_out.values())


def test_an_identical_message_is_always_a_duplicate(tmp_path: Path) -> None:
    report = build_mail_index([write_jsonl(tmp_path / "m.jsonl", [record(1), record(1)])], tmp_path / "index", KEEP_ALL)
    assert (report.messages, report.kept_out) == (1, {"duplicate": 1})


def test_an_identical_message_with_a_used_id_is_a_duplicate(tmp_path: Path) -> None:
    records = [record(1), record(1, body="other"), record(1, body="other"), record(1)]
    report = build_mail_index([write_jsonl(tmp_path / "m.jsonl", records)], tmp_path / "index", KEEP_ALL)
    assert (report.messages, report.kept_out) == (2, {"duplicate": 2})


def test_the_index_records_how_it_was_built(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", RECORDS)
    with (tmp_path / "m.jsonl").open("a") as file:
        file.write('not json\n{"foreign": 1}\n')
    report = build_mail_index([source], tmp_path / "index")
    index = MailIndex(tmp_path / "index")
    facts = index.stats()
    assert facts["sources"] == [source]
    assert facts["options"] == {
        "max_body": 5000,
        "max_recipients": 30,
        "drop_duplicates": True,
        "skip": ["deleted"],
        "inboxes": [],
        "max_attachments": 50,
        "max_attachment_bytes": 20 << 20,
        "max_attachment_characters": 200_000,
        "trust_from": False,
        "trust_authserv": [],
        "embedding": "none",
    }
    assert facts["kept_out"] == report.kept_out
    assert facts["unreadable"] == report.unreadable == {"not JSON": 1, "not a message record": 1}
    assert (facts["messages"], facts["read"], facts["schema"], facts["content"]) == (5, 8, VERSION, report.content)
    assert facts["first_sent"] == "2001-05-02T12:00:00+00:00"
    assert [(place.rpartition(":")[2], reason) for place, reason, _ in index.list_unreadable()] == [
        ("9", "not JSON"),
        ("10", "not a message record"),
    ]


def _content(directory: Path, records: list[dict[str, Any]], options: MailBuildOptions | None = None) -> str:
    return str(make_index(directory, records, options).stats()["content"])


def test_the_content_hash_depends_on_input_and_options(tmp_path: Path) -> None:
    same = _content(tmp_path / "a", RECORDS)
    assert _content(tmp_path / "b", RECORDS) == same
    changes = {
        "a recipient's role": [{**each, "cc": each["to"], "to": []} for each in RECORDS],
        "a recipient": [{**each, "to": ["carol@example.com"]} for each in RECORDS],
        "a date": [{**each, "date": "2001-01-01T00:00:00Z"} for each in RECORDS],
        "an offset": [{**each, "date": (each["date"] or "").replace("12:00:00+00", "13:00:00+01")} for each in RECORDS],
        "a subject": [{**each, "subject": each["subject"] + "!"} for each in RECORDS],
        "an id": [{**each, "message_id": f"{each['message_id']}x"} for each in RECORDS],
        "a name": [{**each, "x_from": "Ann"} for each in RECORDS],
    }
    hashes = {name: _content(tmp_path / name.replace(" ", "-"), records) for name, records in changes.items()}
    hashes["options"] = _content(tmp_path / "options", RECORDS, MailBuildOptions(max_body=4000))
    assert len({same, *hashes.values()}) == len(hashes) + 1


@pytest.mark.ci
def test_the_content_hash_is_the_same_in_another_process(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", RECORDS)
    here = build_mail_index([source], tmp_path / "here").content
    for seed in ("1", "2"):
        code = (
            f"import sys; from pathlib import Path; from gumshoe.mail.build import build_mail_index; "
            f"print(build_mail_index([{source!r}], Path(sys.argv[1])).content)"
        )
        there = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / seed)],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == here


def test_ids_of_dropped_duplicates_read_the_kept_message(tmp_path: Path) -> None:
    records = [record(number, body=f"same {number % 5}", subject="s") for number in range(50)]
    index = make_index(tmp_path, records)
    for number in range(50):
        earliest = min(range(number % 5, 50, 5), key=lambda each: records[each]["date"])
        assert index.read(BOB, f"<{number}@example.com>").message_id == f"<{earliest}@example.com>"


def test_an_existing_index_is_replaced_only_on_request(tmp_path: Path) -> None:
    make_index(tmp_path, [record(1)])
    source = write_jsonl(tmp_path / "new.jsonl", [record(2)])
    with raises("mail.index-exists", tmp_path / "index"):
        build_mail_index([source], tmp_path / "index")
    old = MailIndex(tmp_path / "index")
    build_mail_index([source], tmp_path / "index", replace=True)
    assert old.read(BOB, "<1@example.com>")  # an open index continues to read the old file
    assert MailIndex(tmp_path / "index").read(BOB, "<2@example.com>")
    with ThreadPoolExecutor(1) as thread, raises("mail.index-replaced", old.directory):
        thread.submit(old.search, BOB, ["body"]).result()  # a new thread would have to open the old file
    assert {path.name for path in (tmp_path / "index").iterdir()} == {FILE_NAME, "segment-2", MARK}


def test_an_index_of_another_version_can_be_replaced(tmp_path: Path) -> None:
    index = make_index(tmp_path, [record(1)])
    content = index.stats()["content"]
    for damaged in ('{"schema": 1, "segments": []}', "{"):
        (index.directory / FILE_NAME).write_text(damaged)
        assert build_mail_index([f"jsonl:{tmp_path / 'mail.jsonl'}"], index.directory, replace=True).content == content
        assert {path.name for path in index.directory.iterdir()} == {
            FILE_NAME,
            MARK,
            *read_state(index.directory).segments,
        }


@pytest.mark.parametrize("is_extended", [False, True])
def test_a_build_that_is_stopped_before_it_is_published_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_extended: bool
) -> None:
    index = make_index(tmp_path, [record(1)])
    source = write_jsonl(tmp_path / "more.jsonl", [record(2)])
    directory = index.directory if is_extended else tmp_path / "new"

    def build() -> MailBuildReport:
        return extend_mail_index([source], directory) if is_extended else build_mail_index([source], directory)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(segment_rewriter, "_MERGED_TOGETHER", 2)
    with monkeypatch.context() as patch:
        patch.setattr(index_build, "digest_content", stop)
        with pytest.raises(KeyboardInterrupt):
            build()
    assert len(list((directory / ".partial").glob("segment-*"))) == 1  # not the merged one
    monkeypatch.setattr(index_build.IndexBuild, "_add_batch", stop)
    assert build().messages == 1 + is_extended
    assert not (directory / ".partial").exists()


def test_a_stopped_build_does_not_go_on_as_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, other = (write_jsonl(tmp_path / f"{number}.jsonl", [record(number)]) for number in (1, 2))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(index_build, "digest_content", stop)
        with pytest.raises(KeyboardInterrupt):
            build_mail_index([stopped], tmp_path / "index")
    build_mail_index([other], tmp_path / "index")
    assert [each for each, _ in MailIndex(tmp_path / "index").list_messages(BOB)] == ["<2@example.com>"]


def test_batches_of_large_items_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_batches, "_BATCH_BYTES", 100)
    items: list[source_batches.NumberedItem]
    line, fields = RawLine("x", b"y" * 60), RawRecord("x", {"body": "z" * 60, "to": ["a"]})
    items = [(0, line), (0, line), (0, fields), (0, fields), (0, RawRecord("x", None)), (0, UnreadableItem("x", "y"))]
    assert [len(batch) for batch in source_batches._split_batches(items)] == [2, 2, 2]


def test_a_missing_source_is_rejected_before_the_build(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", RECORDS)
    with raises("store.not-found", f"{tmp_path}/missing.jsonl"):
        build_mail_index([source, f"jsonl:{tmp_path}/missing.jsonl"], tmp_path / "index")
    with raises("mail.no-sources"):
        build_mail_index([], tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_concurrent_builds_in_one_directory_are_rejected(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", RECORDS)
    with lock_directory(tmp_path / "index", wait=None), raises("mail.index-busy", tmp_path / "index"):
        build_mail_index([source], tmp_path / "index")
    build_mail_index([source], tmp_path / "index")


_KILLED = """
import os, sys
from pathlib import Path
from gumshoe.mail import build, index_build, segment_writer, source_batches
from gumshoe.mail.postings import PostingsWriter
from tests.kills import run_killed

source_batches._BATCH, segment_writer._FULL_MESSAGES = 100, 300
for number, point in enumerate([
    (segment_writer, "create_database", 1), (index_build.IndexBuild, "_add_batch", 1),
    (index_build.IndexBuild, "_add_batch", 7),
    (segment_writer, "create_database", 3), (PostingsWriter, "write", 2), (os, "fsync", 1), (Path, "replace", 1),
    (Path, "replace", 2), (Path, "replace", 4), (index_build, "mark_private", 1), (index_build, "write_state", 1)
]):
    run_killed(*point, lambda: build.build_mail_index([sys.argv[1]], Path(sys.argv[2], str(number))))
"""


@pytest.mark.ci
def test_a_build_killed_at_any_point_leaves_no_index(tmp_path: Path) -> None:
    rng = random.Random(7)
    records = [record(number, body=" ".join(rng.choices("abcdefgh", k=60))) for number in range(1000)]
    source = write_jsonl(tmp_path / "m.jsonl", records)
    whole = build_mail_index([source], tmp_path / "whole").content
    assert run_program(_KILLED, source, tmp_path) == [-signal.SIGKILL] * 11
    for number in range(11):
        directory = tmp_path / str(number)
        with raises("mail.no-index", directory):
            MailIndex(directory)
        assert build_mail_index([source], directory).content == whole
        assert {path.name for path in directory.iterdir()} == {FILE_NAME, MARK, *read_state(directory).segments}


_STOPPED = """
import itertools, os, signal, sys
from pathlib import Path
from gumshoe.mail import build, index_build, message_preparer, segment_writer, source_batches

source_batches._BATCH, segment_writer._FULL_MESSAGES, message_preparer._MIN_BATCHES = 100, 300, 2
add, calls = index_build.IndexBuild._add_batch, itertools.count(1)

def stop(*arguments):
    if next(calls) == 6:
        os.killpg(0, int(sys.argv[3]))  # the processes of the pool too, as Ctrl-C does
    add(*arguments)

index_build.IndexBuild._add_batch = stop
build.build_mail_index([sys.argv[1]], Path(sys.argv[2]))
"""


@pytest.mark.ci
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_stopped_build_completes_its_segment_and_goes_on(tmp_path: Path, number: int, status: int) -> None:
    source = write_jsonl(tmp_path / "m.jsonl", [record(each, body=f"text {each}") for each in range(1000)])
    directory = tmp_path / "index"
    command = [sys.executable, "-c", _STOPPED, source, str(directory), str(int(number))]
    run = subprocess.run(command, start_new_session=True, capture_output=True, text=True, check=False)
    assert run.returncode == status, run.stderr
    assert "Process" not in run.stderr
    left = {path.relative_to(directory).as_posix() for path in directory.rglob("*")}
    segments = {f".partial/segment-{number}" for number in (1, 2)}
    files = {f"{segment}/{name}" for segment in segments for name in ("messages.sqlite", "postings.bin")}
    assert left == {".partial", ".partial/progress.json", *segments, *files}
    again, whole = build_mail_index([source], directory), build_mail_index([source], tmp_path / "whole")
    assert replace(again, seconds=0) == replace(whole, seconds=0)
    assert read_state(directory).segments == ("segment-1", "segment-2", "segment-3")


class _Batch(list[RawItem]):
    """A batch that a weak reference can refer to."""


def test_a_build_does_not_hold_the_batches_that_were_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    held: list[int] = []
    with BatchPreparer(MailBuildOptions().to_limits()) as preparer:
        made: list[weakref.ref[_Batch]] = []

        def make_batches() -> Iterator[list[RawItem]]:
            for number in range(30):
                batch = _Batch([RawRecord("place", record(number))])
                made.append(weakref.ref(batch))
                yield batch

        for prepared in preparer.prepare(make_batches()):
            assert isinstance(prepared.items[0], PreparedMessage)
            held.append(sum(each() is not None for each in made))
    assert len(held) == 30
    assert held[-1] == 1


def test_a_process_shows_that_it_is_at_work_on_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_preparer, "_HEARTBEAT_SECONDS", 0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # not possible in a thread

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    here, there = Pipe()
    worker = threading.Thread(target=message_preparer._prepare_batches, args=(there, MailBuildOptions().to_limits()))
    worker.start()
    batch: list[RawItem] = [RawRecord("place", record(number)) for number in range(3)]
    here.send(batch)
    answers = [here.recv() for _ in range(4)]
    shared = list(message_preparer._share_out([here], iter([batch, batch])))
    monkeypatch.setattr(message_preparer, "_HEARTBEAT_SECONDS", 3600)
    monkeypatch.setattr(message_preparer, "parse_item", refuse)
    with pytest.raises(OSError, match="No space"):
        next(message_preparer._share_out([here], iter([batch])))
    here.close()
    worker.join()
    assert [answer is None for answer in answers] == [True, True, True, False]
    assert [len(each.items) for each in shared] == [3, 3]


_UNGUARDED = """
import sys
from pathlib import Path
from gumshoe.mail import build, message_preparer, source_batches

source_batches._BATCH, message_preparer._MIN_BATCHES = 10, 2
build.build_mail_index([sys.argv[1]], Path(sys.argv[2]))
"""


@pytest.mark.ci
def test_a_script_whose_processes_would_start_it_again_is_told_so(tmp_path: Path) -> None:
    source, script = write_jsonl(tmp_path / "m.jsonl", map(record, range(100))), tmp_path / "script.py"
    script.write_text(_UNGUARDED, encoding="utf-8")
    command = [sys.executable, str(script), source, str(tmp_path / "index")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "[mail.build-processes-not-started]" in run.stderr
    assert "[store." not in run.stderr


@pytest.mark.ci
def test_a_full_disk_is_reported_and_leaves_no_files(tmp_path: Path) -> None:
    records = [record(number, body=f"word{number} " * 50) for number in range(5_000)]
    source = write_jsonl(tmp_path / "m.jsonl", records)
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); from gumshoe.cli import main; main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, "mail", "index", source, "--out", str(tmp_path / "index")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert str(tmp_path / "index") in run.stderr
    assert run.stderr.endswith(("[mail.index-not-written]\n", "[store.disk-full]\n"))
    assert "Traceback" not in run.stderr
    assert list((tmp_path / "index").iterdir()) == []


@pytest.mark.ci
def test_real_mail_is_indexed(shared_data: Path, tmp_path: Path) -> None:
    report = build_mail_index([f"jsonl:{shared_data / 'enron' / 'mail.jsonl.gz'}"], tmp_path / "index")
    assert (report.read, report.unreadable) == (16_920, {})
    assert report.kept_out == {"many recipients": 907, "long body": 621, "duplicate": 351}
    assert report.messages == 15_041
