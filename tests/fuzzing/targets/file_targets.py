"""Targets: files that other people write: scenarios, trajectories, manifests, adapters, settings and documents."""

import bz2
import gzip
import json
import lzma
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from gumshoe.artifacts.lines import GZIP_ERRORS, read_lines
from gumshoe.artifacts.manifest import MANIFEST, InvalidManifestError, Manifest
from gumshoe.artifacts.source_files import UnreadableItem
from gumshoe.artifacts.store import Store
from gumshoe.documents.sources import open_source as open_documents
from gumshoe.documents.sources import parse_text
from gumshoe.environments.base import EpisodeState
from gumshoe.environments.tools import Call
from gumshoe.errors import GumshoeError, UsageError
from gumshoe.mail.source_list import read_source_list
from gumshoe.rollouts.chat_format.chat_settings import ChatSettings
from gumshoe.rollouts.trajectory import Mistake, Segment, Span, TokenUsage, Trajectory, TrajectoryFileError
from gumshoe.scenarios.sources import read_scenarios
from tests.fuzzing.byte_inputs import NASTY_TEXTS, damaged, json_values
from tests.fuzzing.fuzz_target import Check, FuzzTarget, check_texts, simple_target
from tests.scenarios.questions import about_documents, question

_JSON = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b":",
    b",",
    b"null",
    b"NaN",
    b"1e999",
    b"\\ud800",
    b"\\u0000",
    b"9" * 5000,
    b"[" * 5000,
]
YAML = b"""a: &x {b: 1, c: [1, 2.5, 2024-01-01, ~, true]}
optimizer: {learning_rate: 1e-5, max_steps: 3}
d: *x
e: !!binary aGk=
f: |
  text
"g": 'h'
<<: *x
? i
: - j
  - {source: "maildir:/tmp", owner: ann@example.com}
"""
_YAML = [
    b"&a ",
    b"*a",
    b"!!int ",
    b"!!bool x",
    b"!!timestamp x",
    b"!!set",
    b"<<: ",
    b"? ",
    b"- ",
    b": ",
    b"\t",
    b"\\ud800",
    b"[" * 2000,
    b"{a: " * 500,
]


def _with_changes(records: list[dict[str, Any]]) -> Callable[[], st.SearchStrategy[bytes]]:
    """Return a strategy of lines of JSON with records of which some fields have other values, or that are damaged."""

    @st.composite
    def lines(draw: st.DrawFn) -> bytes:
        made = dict(draw(st.sampled_from(records)))
        names = st.sampled_from(sorted(made)) | st.sampled_from(NASTY_TEXTS)
        made |= draw(st.dictionaries(names, json_values() | st.sampled_from(NASTY_TEXTS), max_size=3))
        line = json.dumps(made).encode()
        return draw(st.just(line) | damaged([line], _JSON, most=3))

    return lines


@cache
def _trajectory() -> dict[str, Any]:
    record = EpisodeState(answer="42", found=["<1@x>"], best_rank=1)
    spans = [
        Span("prompt", "Q?", (1, 2)),
        Span("sampled", "<tool_call>", (3,), (-0.5,), (Call("look", {"word": "a"}),), has_reasoning=True),
        Span("injected", "R", (4,), segment=1),
    ]
    made = Trajectory(
        *("q1", 0, "p-1", "answer", "", spans, record, 1, 0.5, 0.1, TokenUsage(3, 1)),
        segments=[Segment(0, 2, (9,))],
        mistakes=[Mistake(1, "no call", "x")],
    )
    found: dict[str, Any] = json.loads(made.to_json())
    return found


def _check_trajectory(data: bytes) -> None:
    try:
        found = Trajectory.from_json(data, "here")
    except TrajectoryFileError as error:
        str(error).encode("utf-8", "replace")
        return
    again = found.to_json()
    assert Trajectory.from_json(again, "here").to_json() == again
    for read in (lambda: found.ids, lambda: found.sequences):
        try:
            read()
        except UsageError:
            continue
    assert len(found.mask) >= found.sampled_tokens


@cache
def _manifest() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "in").mkdir()
        (Path(name) / "in" / "a.txt").write_text("a")
        Store(f"{name}/store").publish(Path(name) / "in", "adapters", "1")
        found: dict[str, Any] = json.loads((Path(name) / "store" / "adapters" / "1" / MANIFEST).read_bytes())
        return found


def _check_manifest(data: bytes) -> None:
    try:
        found = Manifest.from_json(data, "here")
    except InvalidManifestError as error:
        str(error).encode("utf-8", "replace")
        return
    for each in found.files:
        assert not each.path.startswith(("/", ".."))
        check_texts(each.path)
    assert Manifest.from_json(found.to_json(), "here") == found


@contextmanager
def _in_file(check: Callable[[Path], None], name: str) -> Iterator[Check]:
    """Yield a check of files with the given name."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name

        def write(data: bytes) -> None:
            path.write_bytes(data)
            path.chmod(0o600)
            check(path)

        yield write


def _opener(check: Callable[[Path], None], name: str, *modules: str) -> Callable[[], AbstractContextManager[Check]]:
    """Return how to open a check of files. It imports modules that take long first."""

    @contextmanager
    def prepare() -> Iterator[Check]:
        for module in modules:
            import_module(module)
        with _in_file(check, name) as opened:
            yield opened

    return prepare


_SUFFIXES = ("", ".gz", ".bz2", ".xz", ".GZ")


def _packed() -> list[bytes]:
    """Return files, each after the number of its suffix."""
    text = b'{"a": 1}\n' * 50 + b"last"
    found = [
        text,
        gzip.compress(text, mtime=0),
        bz2.compress(text),
        lzma.compress(text),
        gzip.compress(text, mtime=0) * 2,
    ]
    return [bytes([number]) + data for number, data in enumerate([*found, text.decode().encode("utf-16")])]


def _check_lines(path: Path) -> None:
    data = path.read_bytes()
    place = path.with_suffix(_SUFFIXES[data[0] % len(_SUFFIXES)] if data else "")
    place.write_bytes(data[1:])
    try:
        read = sum(len(line) for line in read_lines(str(place)))
    except GZIP_ERRORS:
        return
    assert read <= 2 * len(data) or place.suffix


def _check_scenarios(path: Path) -> None:
    try:
        for line in read_scenarios(str(path)):
            if line.scenario is None:
                check_texts(line.where)
                line.fault.encode("utf-8", "replace")
                continue
            written = line.scenario.to_json()
            check_texts(written, line.scenario.digest)
            assert type(line.scenario).model_validate_json(written) == line.scenario
    except UsageError:
        return


def _check_documents(path: Path) -> None:
    for document in open_documents(f"jsonl:{path}").read(lambda _: None):
        if isinstance(document, UnreadableItem):
            check_texts(document.where, document.reason)
            continue
        check_texts(document.document_id, document.title, document.text, document.url, *document.list_context())


def _check_text_document(data: bytes) -> None:
    found = parse_text(data, "a/b.md", "here")
    if not isinstance(found, UnreadableItem):
        check_texts(found.document_id, found.title, found.text, *found.list_context())


def _check_tensors(path: Path) -> None:
    from gumshoe.training.models.base_model import read_tensor_headers

    try:
        found = read_tensor_headers(path)
    except UsageError:
        return
    size = path.stat().st_size
    for each in found.values():
        assert 0 <= each.begin <= each.begin + each.size <= size
        assert all(isinstance(length, int) and length >= 0 for length in each.shape)
        assert isinstance(each.dtype, str)


def _check_adapter(path: Path) -> None:
    from gumshoe.training.adapters.adapter_files import Adapter

    (path.parent / "adapter_model.safetensors").write_bytes(safetensors({"a": _TENSOR}))
    try:
        found = Adapter.read(path.parent)
        found.find_layout_faults()
    except UsageError:
        return


_TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def safetensors(header: object, size: int = 8) -> bytes:
    """Return a file of safetensors with a header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


@st.composite
def tensor_files(draw: st.DrawFn) -> bytes:
    """Return a file of safetensors, mostly with a header that contradicts the file."""
    fields = {
        "dtype": st.sampled_from(["F32", "BF16"]),
        "shape": st.just([2]),
        "data_offsets": st.lists(st.integers(-1, 20), max_size=3),
    }
    odd = st.fixed_dictionaries(fields) | st.just(_TENSOR) | json_values()
    header = draw(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), odd, max_size=3) | json_values())
    data = safetensors(header, draw(st.sampled_from([0, 8, 8, 16])))
    return draw(st.just(data) | damaged([data], _JSON, most=2))


def _check_settings(path: Path) -> None:
    from gumshoe.serving.key_file import read_keys
    from gumshoe.serving.settings import read_settings
    from gumshoe.training.settings_sources import resolve
    from gumshoe_pipelines.graphs import read_values

    place = str(path)
    readers: tuple[Callable[[], object], ...] = (
        lambda: resolve(place, {}, {}),
        lambda: read_settings(path, {}),
        lambda: read_keys(path),
        lambda: read_values([], path),
        lambda: ChatSettings.parse(place),
        lambda: read_source_list(path),
    )
    for read in readers:
        try:
            read()
        except GumshoeError as error:
            check_texts(str(error).encode("utf-8", "backslashreplace").decode()[:1000])


FILE_TARGETS = (
    FuzzTarget("lines", lambda: damaged(_packed()), _opener(_check_lines, "file"), 60),
    FuzzTarget("scenarios", _with_changes([question(1), about_documents(1)]), _opener(_check_scenarios, "q.jsonl"), 60),
    FuzzTarget(
        "documents",
        _with_changes(
            [
                {"id": "a", "title": "T", "text": "x", "url": "http://x/a", "metadata": {"k": [1, "v"]}},
                {"question": "Q", "answer": "A", "question_focus": "F", "document_url": "http://x"},
            ]
        ),
        _opener(_check_documents, "d.jsonl"),
        60,
    ),
    simple_target(
        "text-document", lambda: damaged([b"---\n" + YAML + b"---\n# Head\ntext\n"], _YAML), _check_text_document, 100
    ),
    simple_target("trajectory", lambda: _with_changes([_trajectory()])(), _check_trajectory, 60),
    simple_target("manifest", lambda: _with_changes([_manifest()])(), _check_manifest, 60),
    FuzzTarget(
        "tensors", tensor_files, _opener(_check_tensors, "a.safetensors", "gumshoe.training.models.base_model"), 60
    ),
    FuzzTarget(
        "adapter-config",
        _with_changes([{"peft_type": "LORA", "r": 8, "lora_alpha": 16, "rank_pattern": {}, "target_modules": ["a"]}]),
        _opener(_check_adapter, "adapter_config.json", "gumshoe.training.adapters.adapter_files"),
        40,
    ),
    FuzzTarget(
        "settings",
        lambda: damaged([YAML, b"optimizer: {learning_rate: 1e-5}\n", b"- a\n"], _YAML),
        _opener(_check_settings, "s.yaml", "gumshoe.training.settings_sources", "gumshoe_pipelines.graphs"),
        30,
    ),
)
