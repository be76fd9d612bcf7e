"""Hostile and clumsy programs: `hostile_program.py NAME FILE` as an agent.

Each runs a well-behaved episode too, that of the question `NEIGHBOUR`: its second turn waits until the hostile one has
written the file.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

NEIGHBOUR, SECRET = "What is the price of gas?", "secret-of-the-agent"  # as in `tests.gateway.hostile_agents`
FILE = Path(sys.argv[2])


def behave(task: dict[str, Any]) -> None:
    """Search, read and answer."""
    messages = start(task)
    for number in range(3):
        turn = ask(task, messages)
        messages.append(turn)
        if number == 2:
            print(turn["tool_calls"][0]["function"]["arguments"].replace("message_ids", "sources"))
            return
        result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": f"Result {number}."}
        messages.append(result)
        while number == 0 and not FILE.exists():
            time.sleep(0.01)


def start(task: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "system", "content": task["system_prompt"]}, {"role": "user", "content": task["user_prompt"]}]


def ask(task: dict[str, Any], messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = json.dumps({"model": "any", "messages": messages, "tools": task["tools"]}).encode()
    head = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"}
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, head)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        return dict(json.load(answer)["choices"][0]["message"])


def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfaults() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def kills_its_supervisor() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def stops_its_supervisor() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(600)


def ignores_sigterm() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(600)


def closes_its_pipes() -> None:
    for number in range(3):
        os.close(number)
    os._exit(0)


def floods_output() -> None:
    block = f"{SECRET} {os.environ['OPENAI_API_KEY']} \x1b]0;title\x07".encode() * 20_000
    for _ in range(30):
        os.write(1, block)
        os.write(2, block)
    os.write(1, b"\n42\n")


def floods_connections() -> None:
    address = os.environ["OPENAI_BASE_URL"].split("/")[2].split(":")
    held: list[socket.socket] = []
    with suppress(OSError):  # this process may open fewer files
        while len(held) < 3_000:
            held.append(socket.create_connection((address[0], int(address[1]))))
            if len(held) % 2:
                held[-1].send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x")
    print("42", flush=True)
    FILE.touch()
    while not FILE.with_suffix(".done").exists():  # the connections stay open until the neighbour has ended
        time.sleep(0.01)


def floods_processes() -> None:
    """Leave processes that have sessions of their own and ignore SIGTERM, and one that forks and exits all the time."""
    ready, write = os.pipe()
    for _ in range(30):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(write, b".")
                ignores_sigterm()
            os._exit(0)
    for _ in range(30):
        os.read(ready, 1)
    if os.fork() == 0:
        os.setsid()
        end = time.monotonic() + 30
        while os.fork() == 0 and time.monotonic() < end:
            pass
        os._exit(0)
    print("42")


def main() -> None:
    task = json.load(sys.stdin)
    if task["question"] == NEIGHBOUR:
        behave(task)
        return
    ask(task, start(task))
    print(SECRET, file=sys.stderr)
    if sys.argv[1] != "floods_connections":
        FILE.touch()
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
