"""Programs as agents: what they get, what they return, and that nothing of them remains."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from gumshoe.errors import GumshoeError, UsageError
from gumshoe.gateway import agent_processes
from gumshoe.gateway.agent_answers import MAX_ANSWER, ReturnedAnswer
from gumshoe.gateway.agent_clock import AgentClock
from gumshoe.gateway.agent_errors import AgentCrashedError, AgentDeadlineError, AgentFailedError
from gumshoe.gateway.agents import load_agent
from gumshoe.rollouts.agent_settings import AgentSettings
from tests.gateway.agent_tasks import KEY, SCHEMA, make_task, start_agent
from tests.waiting import Clock, async_wait_until, wait_until

PIDS = "import os, sys; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); "
"""Code that writes its process id to the file in its first argument."""
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def program(code: str, *arguments: Any, **settings: Any) -> AgentSettings:
    """Return the settings of an agent that runs Python code."""
    return AgentSettings(command=(sys.executable, "-I", "-S", "-c", code, *map(str, arguments)), **settings)


def run(settings: AgentSettings) -> ReturnedAnswer:
    async def run_once() -> ReturnedAnswer:
        return await start_agent(settings)

    return asyncio.run(run_once())


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def read_pids(file: Path) -> list[int]:
    return list(map(int, file.read_text().split())) if file.exists() else []


def has_pids(file: Path, count: int) -> bool:
    return len(read_pids(file)) == count


def assert_all_ended(file: Path, count: int) -> None:
    assert len(pids := read_pids(file)) == count
    assert [each for each in pids if is_running(each)] == []


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let programs have little time after SIGTERM, and keep temporary directories in one of the test."""
    monkeypatch.setattr(agent_processes, "PATIENCE", 0.3)
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


@pytest.mark.parametrize(
    ("printed", "answer"),
    [
        ('{"answer": "Friday", "sources": ["<7@example.com>"]}', ReturnedAnswer("Friday", ("<7@example.com>",))),
        ("thinking\n\nFriday\n\n", ReturnedAnswer("Friday")),
        ('{"found": 1}', ReturnedAnswer('{"found": 1}')),
        ('{"answer": ["Friday"]}', ReturnedAnswer('{"answer": ["Friday"]}')),
        ("grüß dich", ReturnedAnswer("grüß dich")),
        ("\xff", ReturnedAnswer("ÿ")),
        ("", ReturnedAnswer(None)),
        (" \n\n", ReturnedAnswer(None)),
    ],
)
def test_the_last_line_is_the_answer(printed: str, answer: ReturnedAnswer) -> None:
    assert run(program("import sys; sys.stdout.buffer.write(sys.argv[1].encode())", printed)) == answer


def test_bytes_that_are_not_utf8_do_no_harm() -> None:
    assert run(program(r"import sys; sys.stdout.buffer.write(b'a\xffb\0')")).answer == "a\ufffdb\ufffd"


def test_the_question_and_the_tools_are_on_standard_input() -> None:
    answer = run(program("import sys; print(sys.stdin.read())")).answer
    assert json.loads(str(answer)) == {
        "question": "When is the invoice due?",
        "system_prompt": "Search the inbox.",
        "user_prompt": "I am ann@example.com. When is the invoice due?",
        "query_date": "2024-05-02",
        "inbox_address": "ann@example.com",
        "tools": [SCHEMA],
    }


ENVIRONMENT = "import json; pairs = open('/proc/self/environ').read().split(chr(0)); "
ENVIRONMENT += "print(json.dumps(dict(each.split('=', 1) for each in pairs if each)))"


def test_only_named_variables_are_in_the_environment(monkeypatch: pytest.MonkeyPatch, short_patience: Path) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-for-agents")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    monkeypatch.setenv("WANTED", "yes")
    inherit = ("PATH", "WANTED", "MISSING", "OPENAI_API_KEY")
    agent = program(ENVIRONMENT, inherit=inherit, environment={"COLOUR": "red", "OPENAI_MODEL": "other"})
    found = json.loads(str(run(agent).answer))
    directory = found.pop("TMPDIR")
    assert found == {
        "PATH": os.environ["PATH"],
        "WANTED": "yes",
        "COLOUR": "red",
        "OPENAI_BASE_URL": "http://127.0.0.1:9/v1",
        "OPENAI_API_KEY": KEY,
        "OPENAI_MODEL": "policy",
        "GUMSHOE_MCP_URL": "http://127.0.0.1:9/mcp",
    }
    assert Path(directory).parent == short_patience


def test_the_temporary_directory_is_empty_and_removed_and_relative_paths_are_those_of_gumshoe(
    short_patience: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agent.py").write_text(
        "import os, pathlib; place = pathlib.Path(os.environ['TMPDIR']); before = os.listdir(place); "
        "(place / 'deep').mkdir(); (place / 'deep' / 'file').write_text('x'); print(before, os.getcwd())"
    )
    monkeypatch.chdir(tmp_path)
    assert run(AgentSettings(command=(sys.executable, "agent.py"))).answer == f"[] {tmp_path}"
    assert list(short_patience.iterdir()) == []


def test_the_key_is_in_no_argument() -> None:
    code = "import os, pathlib; own = pathlib.Path('/proc/self/cmdline').read_bytes(); "
    code += "print((own + pathlib.Path(f'/proc/{os.getppid()}/cmdline').read_bytes()).hex())"
    arguments = bytes.fromhex(str(run(program(code)).answer))
    assert b"gumshoe/inference/reaper.py" in arguments
    assert KEY.encode() not in arguments


@pytest.mark.parametrize(
    ("code", "kind", "error_code", "said"),
    [
        ("import sys; sys.exit(3)", AgentFailedError, "gateway.agent-exited", "3"),
        ("import os; os._exit(255)", AgentFailedError, "gateway.agent-exited", "255"),
        ("print('Friday'); 1 / 0", AgentFailedError, "gateway.agent-exited", "ZeroDivisionError"),
        ("import os, signal; os.kill(os.getpid(), 9)", AgentCrashedError, "gateway.agent-killed", "SIGKILL"),
        ("import os; os.abort()", AgentCrashedError, "gateway.agent-killed", "SIGABRT"),
        ("import os; os.kill(os.getppid(), 9); input()", AgentCrashedError, "gateway.agent-killed", ""),
        (f"print('x' * {MAX_ANSWER + 1})", AgentFailedError, "gateway.agent-answer-invalid", f"{MAX_ANSWER:,}"),
    ],
)
def test_failures_are_told_apart(code: str, kind: type[GumshoeError], error_code: str, said: str) -> None:
    with pytest.raises(kind) as caught:
        run(program(code))
    assert caught.value.code == error_code
    assert said in str(caught.value)


def test_messages_have_the_end_of_standard_error_without_keys() -> None:
    code = "import os, sys; key = os.environ['OPENAI_API_KEY']; sys.stderr.write('early\\n' * 100_000); "
    code += "sys.exit(f'first\\n\\nkey {key}\\npassword=hunter2hunter2\\n' + 'x' * 50 + '\\nlast \\udc80\\0')"
    with pytest.raises(AgentFailedError) as caught:
        run(program(code))
    assert KEY not in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "first; key ***; password=***; xxx" in str(caught.value)
    assert "last" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_program_that_floods_its_output_takes_no_memory_and_its_last_line_counts() -> None:
    flood = "import sys; block = b'x' * (1 << 20)\nfor _ in range(100): sys.stdout.buffer.write(block)"
    tracemalloc.start()
    assert run(program(f"{flood}\nprint(); print('end')")).answer == "end"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
    with pytest.raises(AgentFailedError) as caught:
        run(program(flood))
    assert caught.value.code == "gateway.agent-answer-invalid"
    with pytest.raises(AgentFailedError) as caught:
        run(program(f"{flood.replace('stdout', 'stderr')}\nsys.exit(3)"))
    assert len(str(caught.value)) < 1000


def test_a_program_may_close_its_pipes_early() -> None:
    assert run(program("import os; os.close(0); print('Friday')")).answer == "Friday"
    assert run(program("import os; print('Friday', flush=True); os.close(1); os.close(2)")).answer == "Friday"


@pytest.mark.parametrize("start", ["", "os.setsid(); "], ids=["in its group", "with a session of its own"])
def test_processes_that_a_program_leaves_behind_end_with_it(tmp_path: Path, start: str) -> None:
    """They keep the pipes of the program open."""
    pids = tmp_path / "pids"
    code = f"{PIDS}\nif os.fork() == 0:\n  {start}{PIDS}\n  import time; time.sleep(600)"
    code += "\nwhile len(open(sys.argv[1]).read().split()) < 2: pass\nprint('Friday')"
    assert run(program(code, pids)).answer == "Friday"
    assert_all_ended(pids, 2)


class StartedClock(AgentClock):
    """A clock of an agent that says when it has started, which may be after the program."""

    is_started = False

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        async with super().limit():
            self.is_started = True
            yield


def run_to_deadline(settings: AgentSettings, pids: Path, count: int, clock: Clock) -> None:
    """Run an agent past its deadline of 100 seconds, once its processes have written their ids."""

    async def run_once() -> None:
        agent_clock = StartedClock(100)
        running = asyncio.ensure_future(load_agent(settings)(make_task(), agent_clock))
        await async_wait_until(lambda: agent_clock.is_started and len(read_pids(pids)) == count)
        clock.advance(99)
        await asyncio.wait({running}, timeout=0.01)
        assert not running.done()
        clock.advance(2)
        with pytest.raises(AgentDeadlineError) as caught:
            await running
        assert caught.value.code == "gateway.agent-deadline"

    asyncio.run(run_once())


@pytest.mark.parametrize("how", ["", DEAF], ids=["sleeps", "ignores SIGTERM"])
def test_a_program_is_killed_with_its_children_at_the_deadline(
    tmp_path: Path, short_patience: Path, clock: Clock, how: str
) -> None:
    pids = tmp_path / "pids"
    code = (
        f"{how}import time; {PIDS}\nif os.fork() == 0: {PIDS}\nwhile True: print('here', flush=True); time.sleep(0.01)"
    )
    run_to_deadline(program(code, pids), pids, 2, clock)
    assert_all_ended(pids, 2)
    assert list(short_patience.iterdir()) == []


def test_a_program_has_time_to_end_by_itself_after_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(agent_processes, "PATIENCE", 600)
    code = "import signal, time\ndef end(*_): open(sys.argv[2], 'w').close(); sys.exit()\n"
    code = f"{code}signal.signal(signal.SIGTERM, end); {PIDS}\nwhile True: time.sleep(0.01)"
    run_to_deadline(program(code, tmp_path / "pids", tmp_path / "ended"), tmp_path / "pids", 1, clock)
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("times", [1, 2], ids=["once", "again during the cleanup"])
def test_a_cancelled_episode_leaves_no_process(tmp_path: Path, short_patience: Path, times: int) -> None:
    pids = tmp_path / "pids"

    async def cancel() -> None:
        agent = load_agent(program(f"{DEAF}{PIDS}\nimport time; time.sleep(600)", pids))
        running = asyncio.ensure_future(agent(make_task(), AgentClock(100)))
        await async_wait_until(lambda: read_pids(pids))
        for _ in range(times):
            running.cancel()
            await asyncio.sleep(0.05)
        with pytest.raises(asyncio.CancelledError):
            await running
        await async_wait_until(lambda: not list(short_patience.iterdir()))

    asyncio.run(cancel())
    assert_all_ended(pids, 1)


def test_an_episode_that_is_cancelled_while_it_starts_leaves_no_process(tmp_path: Path, short_patience: Path) -> None:
    async def cancel(turns: int) -> None:
        agent = load_agent(program(f"{PIDS}\nimport time; time.sleep(600)", tmp_path / "pids"))
        running = asyncio.ensure_future(agent(make_task(), AgentClock(100)))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    for turns in range(8):
        asyncio.run(cancel(turns))
    assert [each for each in read_pids(tmp_path / "pids") if is_running(each)] == []
    assert list(short_patience.iterdir()) == []


WAITING = f"{PIDS}\nimport time\nwhile not os.path.exists(sys.argv[2]): time.sleep(0.01)\n"
"""Code that waits for the file in its second argument."""


def test_no_more_processes_run_at_once_than_allowed(tmp_path: Path) -> None:
    pids, go = tmp_path / "pids", tmp_path / "go"

    async def run_all() -> None:
        agent = load_agent(program(WAITING, pids, go, processes=2))
        running = asyncio.gather(*[agent(make_task(), AgentClock(100)) for _ in range(5)])
        await async_wait_until(lambda: len(read_pids(pids)) == 2)
        await asyncio.sleep(0.2)  # for a third one, which must not start
        assert len(read_pids(pids)) == 2
        go.touch()
        await running

    asyncio.run(run_all())
    assert_all_ended(pids, 5)


def test_waiting_for_other_processes_takes_no_time_of_an_episode(tmp_path: Path, clock: Clock) -> None:
    pids = tmp_path / "pids"

    async def run_both() -> None:
        settings = program(f"{WAITING}os.remove(sys.argv[2])", pids, tmp_path / "go", processes=1, deadline=100)
        agent = load_agent(settings)
        running = asyncio.gather(agent(make_task(), AgentClock(100)), agent(make_task(), AgentClock(100)))
        for count in (1, 2):
            await async_wait_until(partial(has_pids, pids, count))
            clock.advance(60)
            (tmp_path / "go").touch()
        await running

    asyncio.run(run_both())


def test_processes_end_if_gumshoe_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        "import asyncio\nfrom tests.gateway.test_agent_processes import *\n"
        f"run(program({f'{PIDS}{chr(10)}import time; time.sleep(600)'!r}, {str(pids)!r}))"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as gumshoe:
        wait_until(lambda: read_pids(pids), gumshoe)
        gumshoe.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(read_pids(pids)[0]))


def test_programs_run_in_the_event_loop_of_the_server(tmp_path: Path) -> None:
    import uvloop

    pids = tmp_path / "pids"

    async def run_both() -> ReturnedAnswer:
        answer = await start_agent(program("print('Friday')"))
        running = asyncio.ensure_future(start_agent(program(f"{PIDS}\nimport time; time.sleep(600)", pids)))
        await async_wait_until(lambda: read_pids(pids))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return answer

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(run_both()).answer == "Friday"
    assert_all_ended(pids, 1)


def test_no_zombies_remain() -> None:
    before = set(psutil.Process().children())
    run(program("print('Friday')"))
    assert set(psutil.Process().children()) <= before


@pytest.mark.parametrize(
    "settings",
    [
        {"command": ("no-such-program-anywhere",)},
        {"command": ("./no-such-file",)},
        {"command": (__file__,)},  # not executable
        {"command": ("sh",), "environment": {"PATH": "/nowhere"}},
    ],
)
def test_a_program_that_does_not_exist_is_reported_when_it_is_loaded(settings: Any) -> None:
    with pytest.raises(UsageError) as caught:
        load_agent(AgentSettings(**settings))
    assert caught.value.code == "gateway.agent-not-found"


def test_a_script_without_an_interpreter_is_a_crash(tmp_path: Path) -> None:
    script = tmp_path / "agent"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o700)
    with pytest.raises(AgentCrashedError) as caught:
        run(AgentSettings(command=(str(script),)))
    assert caught.value.code == "gateway.agent-not-started"


def test_too_many_open_files_are_a_crash(monkeypatch: pytest.MonkeyPatch, short_patience: Path) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise OSError(24, "Too many open files")

    async def run_once() -> ReturnedAnswer:
        monkeypatch.setattr(asyncio.get_running_loop(), "subprocess_exec", refuse)
        return await start_agent(program("print('Friday')"))

    with pytest.raises(AgentCrashedError) as caught:
        asyncio.run(run_once())
    assert caught.value.code == "gateway.agent-not-started"
    assert list(short_patience.iterdir()) == []
