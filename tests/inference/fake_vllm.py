"""A real HTTP server with vLLM's API. It answers questions about `tests.mail.mailbox`, and can be made to fail.

It searches, reads and answers. Each turn depends on the prompt alone, so its answers are reproducible. A test injects
faults into requests for turns:

    server.inject(reset)                                # the next request only
    server.inject(status(500), times=None)              # all requests
    server.inject(altered(wrong_model), after=3)        # the fourth request

`ServerProcess` runs it in its own process, which a test can kill.
"""

import json
import re
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gumshoe.environments.data_marks import strip_marks
from tests.http_server import run_server
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END, ODD_END = "<|im_end|>", "<|endoftext|>"
CONTROL = (ODD_END, "<|im_start|>", END)
STOP = [256 + CONTROL.index(END)]
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '\\n\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}
    {{- '\\n</tools>\\n\\nMake calls as\\n<tool_call>\\n' }}
    {{- '{"name": <name>, "arguments": <object>}\\n</tool_call><|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


@cache
def codec() -> "Tokenizer":
    """Return a byte-level BPE without merges: each byte is a token. Control tokens are ids 256 to 258."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(BPE(vocab={character: number for number, character in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(CONTROL))
    return made


def write_tokenizer(directory: Path, template: str | None = TEMPLATE) -> Path:
    """Write the tokenizer to a model directory, with a chat template like that of Qwen2.5."""
    directory.mkdir(parents=True)
    codec().save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": ODD_END, "model_max_length": 100_000}
    settings |= {"chat_template": template} if template else {}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def encoded(text: str) -> list[int]:
    return list(codec().encode(text, add_special_tokens=False).ids)


def decoded(ids: list[int]) -> str:
    return str(codec().decode(ids, skip_special_tokens=False))


def next_call(question: str, results: list[str], *, of_documents: bool = False) -> tuple[str, dict[str, Any]]:
    """Return the next call of a competent model, which searches, reads, and answers with what it read."""
    about, results = re.findall(r"\d+", question)[-1], list(map(strip_marks, results))
    if of_documents and not results:
        return "search_documents", {"query": f"body of {about}"}
    if of_documents:
        document_id = (re.findall(r"  id: (\S+)", results[0]) or ["none"])[0]
        if len(results) == 1:
            return "read_document", {"document_id": document_id}
        return "return_final_answer", {
            "answer": results[-1].splitlines()[-1],
            "document_ids": [document_id],
        }
    if not results:
        return "search_inbox", {"keywords": ["body", about]}
    message_id = (re.findall(r"  id: (\S+)", results[0]) or ["<none>"])[0]
    if len(results) == 1:
        return "read_email", {"message_id": message_id}
    return "return_final_answer", {"answer": results[-1].splitlines()[-1], "message_ids": [message_id]}


def said_after(prompt: str) -> str:
    """Return the turn that follows a ChatML prompt. If the prompt has "Say:" or "Call:", it is the text after it."""
    questions = re.findall(r"<\|im_start\|>user\n(?!<tool_response>)(.*?)<\|im_end\|>", prompt, re.S)
    _, asks, wanted = questions[0].partition("Say:") if questions else ("", "Say:", "Yes.")
    if asks:
        return wanted.replace("STOP", ODD_END)
    _, asks, wanted = questions[0].partition("Call:")
    if asks:
        return f"<tool_call>\n{wanted}\n</tool_call>"
    results = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", prompt, re.S)
    name, arguments = next_call(questions[0], results, of_documents='"search_documents"' in prompt)
    thought = f"<think>\nTurn {len(results) + 1}.\n</think>\n" if "in <think> and </think>" in prompt else ""
    return f"{thought}<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class Exchange:
    """One request for a turn, which a fault may answer."""

    def __init__(
        self, handler: "_Handler", server: "FakeVLLM", request: dict[str, Any], answer: dict[str, Any]
    ) -> None:
        self._handler, self.server = handler, server
        self.request, self.answer, self.status = request, answer, 200
        self.port = int(handler.client_address[1])

    def start_reply(self, status: int, size: int, kind: str = "application/json", **headers: str) -> None:
        self._handler.send_response_only(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(size), **headers}.items():
            self._handler.send_header(name, value)
        self._handler.end_headers()

    def send(self, data: bytes) -> None:
        self._handler.wfile.write(data)

    def reply(self, body: Any, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.start_reply(status, len(data))
        self.send(data)

    def drop(self) -> None:
        """Reset the connection, as when a server crashes."""
        connection = self._handler.connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._handler.close_connection = True
        self._handler.rfile.close()
        connection.close()

    def pause(self, seconds: float | None = None) -> bool:
        """Wait until the time is over or the server closes. Return True if it closes."""
        return self.server.closing.wait(seconds)

    def wait_for_client_to_leave(self) -> None:
        """Wait until the client closes the connection, or the server closes."""
        self._handler.connection.settimeout(0.05)
        while not self.server.closing.is_set():
            try:
                self._handler.connection.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                continue
            except ConnectionError:
                pass
            return

    def close(self) -> None:
        self._handler.close_connection = True


Act = Callable[[Exchange], None]
Change = Callable[[dict[str, Any]], object]


class RejectedError(Exception):
    """Answer to a request that a chat model does not accept, in the format of OpenAI."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
        self.status, self.body = 400, {"error": error}


def forward(exchange: Exchange) -> None:
    exchange.reply(exchange.answer, exchange.status)


def reset(exchange: Exchange) -> None:
    exchange.drop()


def stall(exchange: Exchange) -> None:
    """Do not answer as long as the client waits."""
    exchange.wait_for_client_to_leave()
    exchange.drop()


def trickle(exchange: Exchange) -> None:
    """Send the answer byte by byte, without end."""
    data = json.dumps(exchange.answer).encode()
    exchange.start_reply(200, len(data))
    for byte in data:
        exchange.send(bytes([byte]))
        if exchange.pause(0.05):
            break
    exchange.close()


def held(release: threading.Event) -> Act:
    """Answer correctly, as soon as `release` is set."""

    def act(exchange: Exchange) -> None:
        release.wait()
        forward(exchange)

    return act


def after(seconds: float) -> Act:
    """Answer correctly after some seconds."""

    def act(exchange: Exchange) -> None:
        exchange.pause(seconds)
        forward(exchange)

    return act


def together(count: int) -> Act:
    """Answer correctly as soon as `count` requests are in progress."""
    meeting = threading.Barrier(count)

    def act(exchange: Exchange) -> None:
        meeting.wait()
        forward(exchange)

    return act


def first_tries(act: Act, tries: int = 1) -> Act:
    """Apply a fault to the first `tries` requests with each prompt, in any order of the requests."""
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def strike(exchange: Exchange) -> None:
        with lock:
            seen[str(exchange.request["prompt"])] += 1
            strikes = seen[str(exchange.request["prompt"])] <= tries
        (act if strikes else forward)(exchange)

    return strike


def status(code: int, body: Any = None) -> Act:
    return lambda exchange: exchange.reply(body or {"error": {"message": "not now", "code": code}}, code)


def cut_json(exchange: Exchange) -> None:
    """Send half of the answer as a complete response."""
    data = json.dumps(exchange.answer).encode()
    data = data[: len(data) // 2]
    exchange.start_reply(200, len(data))
    exchange.send(data)


def cut_body(exchange: Exchange) -> None:
    """Send half of the promised bytes and close the connection."""
    data = json.dumps(exchange.answer).encode()
    exchange.start_reply(200, len(data))
    exchange.send(data[: len(data) // 2])
    exchange.close()


def raw(body: bytes, kind: str = "application/json", **headers: str) -> Act:
    def act(exchange: Exchange) -> None:
        exchange.start_reply(200, len(body), kind, **headers)
        exchange.send(body)

    return act


def altered(change: Change) -> Act:
    """Send the correct answer with a change."""

    def act(exchange: Exchange) -> None:
        change(exchange.answer)
        forward(exchange)

    return act


def choice(**fields: Any) -> Act:
    """Send the correct answer with other fields in its choice."""
    return altered(lambda answer: answer["choices"][0].update(fields))


def wrong_model(answer: dict[str, Any]) -> None:
    answer["model"] = "somebody-else"


def fewer_logprobs(answer: dict[str, Any]) -> None:
    del answer["choices"][0]["logprobs"]["token_logprobs"][-1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        server = self._owner()
        exchange = Exchange(self, server, {}, {})
        if self.path == "/v1/models":
            base, *adapters = server.models
            data = [{"id": base, "object": "model", "parent": None, "max_model_len": server.max_model_len}]
            rooted = {**dict.fromkeys(adapters, ""), **server.roots}
            data += [
                {"id": name, "object": "model", "parent": base, "root": root, "max_model_len": None}
                for name, root in rooted.items()
            ]
            exchange.reply({"object": "list", "data": data})
        elif self.path == "/health":
            server.health(exchange)
        else:
            exchange.reply({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        server = self._owner()
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answers = {
            "/v1/completions": _completion,
            "/v1/chat/completions": server.chat,
            "/v1/embeddings": server.embeddings,
        }
        exchange = Exchange(self, server, request, {})
        if self.path == "/tokenize" and server.tokenize is not None:
            server.tokenize(exchange)
        elif self.path == "/v1/load_lora_adapter":
            server.load(exchange)
        elif self.path == "/v1/unload_lora_adapter":
            unload_adapter(exchange)
        elif self.path not in answers:
            exchange.reply({"detail": "Not Found"}, 404)
        elif request["model"] not in (*server.models, *server.roots):
            exchange.reply({"error": {"message": f"The model `{request['model']}` does not exist.", "code": 404}}, 404)
        else:
            try:
                exchange.answer = answers[self.path](request)
            except RejectedError as error:
                exchange.answer, exchange.status = error.body, error.status
            server.handle(exchange, self.headers.get("Authorization", ""))

    def _owner(self) -> "FakeVLLM":
        assert isinstance(self.server, _Server)
        return self.server.owner

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


def _completion(request: dict[str, Any]) -> dict[str, Any]:
    """Return a completion. As in vLLM, missing parameters have the model's defaults, and these are bad ones."""
    prompt = request["prompt"]
    prompt = encoded(prompt) if isinstance(prompt, str) else prompt
    text = said_after(decoded(prompt))
    ids = [*encoded(text), *STOP, *encoded("\nand on it goes")]
    ends = set(request.get("stop_token_ids", [])) | (set() if request.get("ignore_eos") else set(encoded(ODD_END)))
    length = min(request.get("max_tokens", 16), next((at for at, each in enumerate(ids, 1) if each in ends), len(ids)))
    ids = ids[:length]
    logprobs = [0.0] * len(ids) if request.get("top_k") == 1 else logprobs_of(ids)
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": request["model"],
        "choices": [
            {
                "index": 0,
                "text": decoded(ids),
                "finish_reason": "stop" if ids[-1] in ends else "length",
                "logprobs": {"token_logprobs": logprobs} if request.get("logprobs") is not None else None,
                "token_ids": ids if request.get("return_token_ids") else None,
                "prompt_token_ids": prompt if request.get("return_token_ids") else None,
                "prompt_logprobs": None if request.get("prompt_logprobs") is None else prompt_logprobs_of(prompt),
            }
        ],
    }


def tokenize(exchange: Exchange) -> None:
    """Tokenize a text, as vLLM does (vllm/entrypoints/serve/tokenize)."""
    assert exchange.request["add_special_tokens"] is False, "the default is to add some"
    ids = encoded(exchange.request["prompt"])
    names = list(map(codec().id_to_token, ids)) if exchange.request.get("return_token_strs") else None
    exchange.reply({"count": len(ids), "max_model_len": 100_000, "tokens": ids, "token_strs": names})


def well(exchange: Exchange) -> None:
    exchange.reply({})


def load_adapter(exchange: Exchange) -> None:
    """Load an adapter. As vLLM, reject a used name or too high a rank (vllm/entrypoints/openai/models/serving.py)."""
    name, path = exchange.request["lora_name"], exchange.request["lora_path"]
    roots = exchange.server.roots
    if name in (*exchange.server.models, *roots):
        refuse(f"The lora adapter '{name}' has already been loaded.", 400)(exchange)
        return
    try:
        rank = json.loads((Path(path) / "adapter_config.json").read_text())["r"]
        weights = (Path(path) / "adapter_model.safetensors").read_bytes()
    except OSError as error:
        refuse(f"Loading lora {name} failed: No adapter found for {path} ({error})", 404)(exchange)
        return
    if rank > exchange.server.max_lora_rank:
        refuse(f"LoRA rank {rank} is greater than max_lora_rank {exchange.server.max_lora_rank}.", 400)(exchange)
        return
    exchange.server.loaded.append((name, weights))
    roots[name] = path
    exchange.reply(f"Success: LoRA adapter '{name}' added successfully.")


def unload_adapter(exchange: Exchange) -> None:
    if exchange.server.roots.pop(exchange.request["lora_name"], None) is None:
        refuse("The lora adapter cannot be found.", 404)(exchange)
    else:
        exchange.reply("Success")


def refuse(said: str, code: int) -> Act:
    """Answer with an error in vLLM's format."""
    return lambda exchange: exchange.reply({"error": {"message": said, "type": "BadRequestError", "code": code}}, code)


def logprobs_of(ids: list[int]) -> list[float]:
    """Return the log-probabilities that the server assigns to ids."""
    return [-(each % 7) / 8 for each in ids]


def prompt_logprobs_of(ids: list[int]) -> list[dict[str, Any] | None]:
    """Return the log-probabilities of a prompt in vLLM's format. The first token has none."""
    scored = list(zip(ids, logprobs_of(ids), strict=True))
    return [None, *({str(token): {"logprob": logprob}} for token, logprob in scored[1:])]


def chat_completion(request: dict[str, Any]) -> dict[str, Any]:
    messages = request["messages"]
    results = [each["content"] for each in messages if each["role"] == "tool"]
    question = next(each["content"] for each in messages if each["role"] == "user")
    of_documents = any(each["function"]["name"] == "search_documents" for each in request["tools"])
    name, arguments = next_call(question, results, of_documents=of_documents)
    return chat_turn(None, (name, json.dumps(arguments)), call=f"call-{len(results)}")


def chat_turn(content: str | None, *calls: tuple[str, str], call: str = "call") -> dict[str, Any]:
    """Return a turn in the format of a chat endpoint, given its text and the names and arguments of its calls."""
    made = [
        {"id": f"{call}-{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, **({"tool_calls": made} if made else {})}
    finish = "tool_calls" if made else "stop"
    choices = [{"index": 0, "message": message, "finish_reason": finish}]
    return {"id": "chat-1", "object": "chat.completion", "created": 1, "model": "chat-2026", "choices": choices}


def letter_counts(request: dict[str, Any]) -> dict[str, Any]:
    """Return embeddings that count letters, so that texts with similar letters are similar."""
    counts = [[text.casefold().count(chr(97 + letter)) for letter in range(26)] for text in request["input"]]
    data = [{"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(counts)]
    return {"object": "list", "model": request["model"], "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, owner: "FakeVLLM", port: int) -> None:
        self.owner = owner
        super().__init__((owner.host, port), _Handler)

    def handle_error(self, *_: Any) -> None:
        error = sys.exception()
        if not isinstance(error, ConnectionError | ValueError):  # clients may disconnect
            self.owner.errors.append(repr(error))


@dataclass(slots=True)
class _Fault:
    act: Act
    times: int | None
    after: int

    def strikes(self) -> bool:
        if self.after or self.times == 0:
            self.after = max(0, self.after - 1)
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass
class FakeVLLM:
    """Fake vLLM server. A context manager that listens at `address` until the block ends."""

    models: tuple[str, ...] = ("base", "adapter")
    max_model_len: int = 100_000
    max_lora_rank: int = 16
    host: str = "127.0.0.1"
    port: int = 0
    roots: dict[str, str] = field(default_factory=dict)
    """Loaded adapters and their paths."""
    loaded: list[tuple[str, bytes]] = field(default_factory=list)
    """Every adapter that was ever loaded, and its weights."""
    health: Act = well
    load: Act = load_adapter
    """Handler of requests to load an adapter."""
    probe: Act = forward
    """Handler of probe requests with top-k 1, which are not turns."""
    chat: Callable[[dict[str, Any]], dict[str, Any]] = chat_completion
    """Return the answer to a request for a chat turn, or raise `RejectedError`. See `tests.inference.fake_chat`."""
    embeddings: Callable[[dict[str, Any]], dict[str, Any]] = letter_counts
    """Return the answer to a request for embeddings."""
    tokenize: Act | None = tokenize
    """Handler of requests to tokenize a text; None if the server has no such route."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of the requests for turns, in order."""
    keys: list[str] = field(default_factory=list)
    """Authorization header of each request."""
    ports: list[int] = field(default_factory=list)
    """Port of the client's end of the connection, of each request."""
    errors: list[str] = field(default_factory=list)
    """Errors in the server itself. They invalidate a test."""
    most_at_once: int = 0
    under_way: int = 0
    closing: threading.Event = field(default_factory=threading.Event)
    _faults: list[_Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def inject(self, act: Act, *, times: int | None = 1, after: int = 0) -> None:
        """Apply a fault to `times` requests for turns (None: all), after the first `after` requests."""
        with self._lock:
            self._faults.append(_Fault(act, times, after))

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()

    def handle(self, exchange: Exchange, key: str) -> None:
        if exchange.request.get("top_k") == 1:
            self.probe(exchange)
            return
        with self._lock:
            self.requests.append(exchange.request)
            self.keys.append(key)
            self.ports.append(exchange.port)
            self.under_way += 1
            self.most_at_once = max(self.most_at_once, self.under_way)
            act = next((fault.act for fault in self._faults if fault.strikes()), forward)
        try:
            act(exchange)
        finally:
            with self._lock:
                self.under_way -= 1

    def wait_until_idle(self) -> None:
        """Wait until no request is in progress."""
        wait_until(lambda: not self.under_way)

    def __enter__(self) -> Self:
        self._serving = run_server(_Server(self, self.port))
        self.address = self._serving.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._serving.__exit__(kind, error, trace)


class ServerProcess:
    """The server in its own process with a fixed port, which can be killed and restarted."""

    def __init__(self, port: int, delay: float = 0.0) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self._port, self._delay = port, delay

    def start(self) -> None:
        command = [sys.executable, "-m", __name__, str(self._port), str(self._delay)]
        self._process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
        wait_until(self._is_ready, self._process)

    def _is_ready(self) -> bool:
        try:
            _NO_PROXY.open(f"{self.address}/v1/models", timeout=5).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def main(port: str, delay: str) -> None:
    server = FakeVLLM(port=int(port))
    server.inject(after(float(delay)), times=None)
    with server:
        server.closing.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
