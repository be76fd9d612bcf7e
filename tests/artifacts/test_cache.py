"""The cache on disk: concurrent use, file permissions, and errors if it cannot be used."""

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from gumshoe.artifacts import response_cache
from gumshoe.artifacts.response_cache import Cache, cache_key, default_cache_path
from tests.errors import raises


def test_values_persist_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "cache.sqlite"
    cache = Cache(path)
    cache.put({f"{number}": bytes([number]) for number in range(200)})
    cache.put({"7": b"seven"})
    cache.close()
    found = Cache(path).get([*map(str, range(1200)), "7"])
    assert len(found) == 200
    assert (found["7"], found["8"]) == (b"seven", b"\x08")
    assert path.stat().st_mode & 0o077 == 0, "it may hold mail"


def test_several_processes_write_concurrently(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from gumshoe.artifacts.response_cache import Cache\n"
        "cache = Cache(Path(sys.argv[1]))\n"
        "for number in range(50): cache.put({f'{sys.argv[2]}-{number}': b'x'})"
    )
    path = tmp_path / "cache.sqlite"
    writers = [subprocess.Popen([sys.executable, "-c", code, path, name]) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(Cache(path).get(f"{name}-{number}" for name in "abc" for number in range(50))) == 150


def test_a_file_that_another_process_is_creating_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.sqlite"
    pauses: list[float] = []
    with closing(sqlite3.connect(path, isolation_level=None)) as other:

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                other.execute("COMMIT")

        monkeypatch.setattr(response_cache._retry_while_busy, "sleep", pause)
        other.execute("BEGIN IMMEDIATE")
        cache = Cache(path)
    assert len(pauses) == 3
    cache.put({"a": b"x"})
    assert cache.get(["a"]) == {"a": b"x"}


def test_several_threads_share_a_cache(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache.sqlite")

    def write(number: int) -> int:
        cache.put({f"{number}": b"x"})
        return len(cache.get([f"{number}"]))

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(write, range(300))) == 300


def test_a_failed_write_is_rolled_back(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache.sqlite")
    with raises("store.cache-unusable", tmp_path / "cache.sqlite"):
        cache.put({"a": b"x", "b": object()})  # type: ignore[dict-item] # that is the point
    cache.put({"c": b"y"})
    assert cache.get("abc") == {"c": b"y"}


def test_a_file_that_is_not_a_cache_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    path.write_text("something else, and long enough to be looked at as a data base" * 20)
    with raises("store.cache-unusable", path):
        Cache(path)
    with raises("store.cache-unusable", tmp_path):
        Cache(tmp_path)


def test_keys_differ_if_any_part_of_the_request_does() -> None:
    assert len({cache_key("a", "bc"), cache_key("ab", "c"), cache_key("a", "bc", None), cache_key(["a"], "bc")}) == 4


def test_the_default_path_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("GUMSHOE_CACHE", raising=False)
    assert default_cache_path("judge") == tmp_path / "xdg" / "gumshoe" / "judge.sqlite"
    monkeypatch.setenv("GUMSHOE_CACHE", str(tmp_path / "own"))
    assert default_cache_path("judge") == tmp_path / "own" / "judge.sqlite"
