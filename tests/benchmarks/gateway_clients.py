"""Clients of the benchmark of the gateway, in a process of their own that does little else.

Standard input has one JSON object per line, with the address, the keys of the episodes, the schemas of the tools, and
the seconds that the policy takes for each turn of each episode. For each line, the clients run their episodes, all at
once, and print the seconds that each request took beyond the policy's.
"""

import asyncio
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

SYSTEM = "You search a mailbox. " * 40
QUESTION = "What is the price of gas?"
RESULT = "The gas price is 42. " * 40


async def run_clients(given: dict[str, Any]) -> list[float]:
    """Run an episode for each key, and return the seconds of all requests."""
    episodes = enumerate(zip(given["keys"], given["pauses"], strict=True))
    # `apart`, or all would ask in the same moment
    found = await asyncio.gather(
        *(run_client(given, key, pauses, at * given["apart"]) for at, (key, pauses) in episodes)
    )
    return [each for times in found for each in times]


async def run_client(given: dict[str, Any], key: str, pauses: list[float], begin: float) -> list[float]:
    """Run one episode after `begin` seconds: a turn, the results of its calls, the next turn."""
    await asyncio.sleep(begin)
    address = urlsplit(given["address"])
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    taken = list[float]()
    for pause in pauses:
        body = json.dumps({"model": "policy", "messages": messages, "tools": given["tools"]}).encode()
        head = f"POST {address.path}/chat/completions HTTP/1.1\r\nhost: {address.netloc}\r\n"
        head += f"authorization: Bearer {key}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        started = time.perf_counter()
        writer.write(head.encode() + body)
        answer = await read_answer(reader)
        taken.append(time.perf_counter() - started - pause)
        message = json.loads(answer)["choices"][0]["message"]
        calls = message.get("tool_calls", [])
        messages += [message, *({"role": "tool", "tool_call_id": each["id"], "content": RESULT} for each in calls)]
    writer.close()
    return taken


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """Return the body of a response, which must be a success."""
    status, *fields = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    length = next(int(each.partition(b":")[2]) for each in fields if each.startswith(b"content-length:"))
    body = await reader.readexactly(length)
    if b" 200 " not in status:
        raise SystemExit(body.decode())
    return body


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(asyncio.run(run_clients(json.loads(line)))), flush=True)
