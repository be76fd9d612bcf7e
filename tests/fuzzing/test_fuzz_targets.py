"""Each target of fuzzing handles inputs that are always the same, and those that failed once."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.fuzzing import fuzz_run
from tests.fuzzing.fuzz_run import fuzz, try_inputs
from tests.fuzzing.fuzz_target import CORPUS, Check, FuzzTarget, simple_target
from tests.fuzzing.targets import TARGETS

ROOT = Path(__file__).parents[2]


@pytest.mark.ci
@pytest.mark.parametrize(
    "target",
    [pytest.param(each, id=each.name, marks=pytest.mark.ci if each.is_slow else ()) for each in TARGETS],
)
def test_inputs_are_handled(target: FuzzTarget) -> None:
    with target.open() as check:
        for path in target.list_corpus():
            check(path.read_bytes())
        result = try_inputs(target, check, target.examples)
    if result.failure:
        pytest.fail(f"{result.failure.data!r}\n{result.failure.describe()}")
    assert result.inputs >= target.examples // 2, "it hardly tries anything"


def test_every_kept_input_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir() if path.is_dir()} <= {each.name for each in TARGETS}
    assert len({each.name for each in TARGETS}) == len(TARGETS)


def _fail_if_long(data: bytes) -> None:
    if len(data) > 2:
        raise ZeroDivisionError(data)


def test_a_failure_is_made_small_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_run, "CORPUS", tmp_path)
    target = simple_target("any", st.binary, _fail_if_long)
    result = fuzz(target, 60, seed=3)
    assert result.failure is not None
    assert isinstance(result.failure.error, ZeroDivisionError)
    assert result.failure.data == b"\0\0\0"
    kept = Path(result.failure.keep())
    assert kept.parent == tmp_path / "any"
    assert kept.read_bytes() == b"\0\0\0"
    assert "ZeroDivisionError" in result.failure.describe()


def test_the_same_seed_tries_the_same_inputs() -> None:
    tried: list[bytes] = []

    @contextmanager
    def prepare() -> Iterator[Check]:
        yield tried.append

    target = FuzzTarget("any", st.binary, prepare)
    for seed in (1, 1, 2, None, None):
        with target.open() as check:
            try_inputs(target, check, 20, seed)
    runs = [tried[start : start + 20] for start in range(0, 100, 20)]
    assert runs[0] == runs[1] != runs[2]
    assert runs[3] == runs[4]


@pytest.mark.ci
def test_the_command_prints_its_seed_and_lists_targets() -> None:
    run = [sys.executable, "-m", "tests.fuzzing"]
    listed = subprocess.run([*run, "--list"], capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    assert listed == [each.name for each in TARGETS]
    words = [*run, "--only", "manifest", "--seconds", "0.1", "--seed", "17"]
    ran = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    assert "manifest: seed 17" in ran.stdout
