"""Client of an agent server, and the errors that it raises."""

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Literal, Self, TypeVar

import httpx
from pydantic import ValidationError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from gumshoe.client.responses import PROBLEM_TYPE, AgentAnswer, AgentStep, CitedText, FeedbackResult, Response
from gumshoe.errors import GumshoeError, UnavailableError, UsageError
from gumshoe.network import clean_credential, raise_if_untrusted

_CODE = re.compile(re.escape(PROBLEM_TYPE) + r"([a-z][a-z-]*\.[a-z0-9][a-z0-9-]*)")
_BUSY, _FAILED = 429, 500
_RETRIED = (_BUSY, 503)
_EXHAUSTED = "serving.budget-exhausted"  # until the next day, so that it makes no sense to wait
_CONNECT_TIMEOUT = 10.0  # seconds
_LONGEST_PAUSE = 60.0  # seconds between two attempts, whatever the server asks for
_BACKOFF = wait_exponential(multiplier=1, max=_LONGEST_PAUSE)

ResponseT = TypeVar("ResponseT", bound=Response)


class AgentServerError(GumshoeError):
    """Report that an agent server did not answer a request.

    `code` is the stable error code, e.g. `serving.inbox-forbidden`. `gumshoe explain CODE` describes it.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(code, message)
        self.status = status
        """HTTP status; None if there was no response."""
        self.request_id = request_id
        """ID of the request in the server's log; None if the server did not send one."""
        self.retry_after = retry_after
        """Seconds after which the server asks to try again; None if it does not."""


class RequestRejectedError(AgentServerError, UsageError):
    """Report that the server rejected the request. Sending the same request again does not help."""


class AuthenticationError(RequestRejectedError):
    """Report that the key or token is missing or invalid (status 401)."""


class InboxForbiddenError(RequestRejectedError):
    """Report that the key or token may not read the inbox (status 403)."""


class ServerUnavailableError(AgentServerError, UnavailableError):
    """Report that the server is busy, failed, or cannot be reached (status 429, 5xx, or none)."""


def _check_key(key: str) -> str:
    """Return a key without the white space around it. The message of an error does not contain it."""
    found = clean_credential(key)
    if found is None:
        raise UsageError(
            "serving.malformed-key",
            "the key contains white space or characters other than ASCII; copy the whole key again",
        )
    return found


class AgentClient:
    """Client of an agent server. Several threads may use it at once. Close it, or use it in a `with` block.

    In asyncio, run its methods in a thread: `await asyncio.to_thread(client.ask, "When is the invoice due?")`. Proxies
    and certificates are taken from the environment (`HTTPS_PROXY`, `SSL_CERT_FILE`), as httpx does.

    Args:
        url: address of the server, without `/invoke`, e.g. `http://127.0.0.1:8000`.
        key: a key of `gumshoe serve-key`, or a token (JWT); None for a server with open access.
        timeout: seconds to wait for the server to send something. An answer may take as long as the server's
            `limits.deadline`, 120 seconds by default.
        retries: how often a request is sent again if the server answers 429 or 503. The pause before it is that of
            the `Retry-After` header, otherwise 1, 2, 4, … seconds, and at most 60.

    Raises:
        UsageError: if the key contains white space or characters other than ASCII.
    """

    def __init__(self, url: str, key: str | None = None, *, timeout: float = 300, retries: int = 3) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {_check_key(key)}"} if key else {},
            timeout=httpx.Timeout(timeout, connect=min(timeout, _CONNECT_TIMEOUT)),
        )
        self._retrying = Retrying(
            retry=retry_if_exception(_is_worth_retrying),
            stop=stop_after_attempt(retries + 1),
            wait=_choose_pause,
            reraise=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ask(
        self,
        question: str,
        *,
        inbox: str | None = None,
        date: datetime.date | str | None = None,
        session: str | None = None,
    ) -> AgentAnswer:
        """Ask a question and return its answer, with steps and sources.

            answer = client.ask("When is the invoice due?", inbox="ann@example.com", date=datetime.date(2024, 5, 1))

        Args:
            question: the question.
            inbox: address of the inbox to search. Not needed if the key may read only one, or for documents.
            date: day as of which to answer, as a date or as `YYYY-MM-DD`; later messages are ignored. Default: today
                for mail, none for documents.
            session: questions of one session are answered by the same policy during a canary.

        Raises:
            RequestRejectedError: if the server rejects the question or the key.
            ServerUnavailableError: if the server is busy or failed, or cannot be reached.
            UsageError: if the date or the URL is malformed, or the URL is not that of an agent server.
        """
        response = self._send("/invoke", {**_question_body(question, inbox, date, session), "steps": True})
        return self._parse(AgentAnswer, response.content)

    def ask_stream(
        self,
        question: str,
        *,
        inbox: str | None = None,
        date: datetime.date | str | None = None,
        session: str | None = None,
    ) -> Iterator[AgentStep | AgentAnswer]:
        """Ask a question like `ask`. Yield each step as it is taken, and finally the answer.

        A step with a tool call is yielded twice: when the tool is called, and again with its result.

            for event in client.ask_stream("When is the invoice due?", inbox="ann@example.com"):
                if isinstance(event, AgentAnswer):
                    print(event.answer)
                elif event.result is None:
                    print(event.turn, event.tool, event.arguments)

        The errors are those of `ask`. They are raised when the iterator is used, not by this call.
        """
        response = self._send("/invoke/stream", _question_body(question, inbox, date, session), stream=True)
        try:
            with self._translate_errors():
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    raise self._not_a_server_error()
                for name, data in _read_events(response.iter_bytes()):
                    if name == "problem":
                        raise self._describe_problem(data, None)
                    if name == "answer":
                        yield self._parse(AgentAnswer, data)
                        return
                    yield self._parse(AgentStep, data)
        finally:
            response.close()
        raise ServerUnavailableError("serving.unreachable", f"{self.url} ended the stream without an answer; try again")

    def feedback(
        self,
        answer: AgentAnswer,
        *,
        right: bool,
        right_answer: str | None = None,
        right_source_ids: Sequence[str] = (),
        unanswerable: bool = False,
        consent: Literal["training", "none"] | None = None,
    ) -> bool:
        """Report whether an answer is right. Return True if the server accepted it for training.

            client.feedback(answer, right=False, right_answer="Friday", right_source_ids=["<1@example.com>"])

        The server accepts only questions with an answer and its sources: those of `answer` if it is right, otherwise
        `right_answer` and `right_source_ids`. With `unanswerable`, no source has the answer, and "I don't know" is
        right. `consent` says what the feedback may be used for; by default, the server's settings say it. The server
        publishes what it has accepted every few minutes. The errors are those of `ask`.
        """
        sent = answer.model_dump(mode="json", include={"question", "inbox_address", "query_date", "answer", "policy"})
        body = {**sent, "source_ids": list(answer.source_ids), "right": right, "right_answer": right_answer}
        body |= {"right_source_ids": list(right_source_ids)}
        body |= {"unanswerable": True} if unanswerable else {}  # older servers do not have these fields
        body |= {"consent": consent} if consent else {}
        response = self._send("/feedback", body)
        return self._parse(FeedbackResult, response.content).kept

    def read_source(self, answer: AgentAnswer, source_id: str) -> CitedText:
        """Return the text of one of an answer's sources: a message or a document.

            text = client.read_source(answer, answer.source_ids[0]).text

        The errors are those of `ask`.
        """
        where = answer.model_dump(mode="json", include={"inbox_address", "query_date"})
        return self._parse(CitedText, self._send("/source", {**where, "source_id": source_id}).content)

    def _send(self, path: str, body: dict[str, Any], *, stream: bool = False) -> httpx.Response:
        """Send a request, again if the server is busy, and return its response, which is a success."""

        def send() -> httpx.Response:
            with self._translate_errors():
                request = self._http.build_request("POST", f"{self.url}{path}", json=body)
                response = self._http.send(request, stream=stream)
                if response.is_success:
                    return response
                with closing(response):
                    raise self._describe_problem(response.read(), response)

        return self._retrying(send)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise UsageError(
                "serving.invalid-url", f"{self.url} is not a valid address: {error}; write http://HOST:PORT"
            ) from None
        except httpx.HTTPError as error:
            raise_if_untrusted(error, self.url)
            raise ServerUnavailableError(
                "serving.unreachable",
                f"{self.url} does not answer: {type(error).__name__}: {error}; check that it is running",
            ) from None

    def _parse(self, model: type[ResponseT], data: bytes) -> ResponseT:
        try:
            return model.model_validate_json(data)
        except ValidationError:
            raise self._not_a_server_error() from None

    def _not_a_server_error(self) -> UsageError:
        return UsageError(
            "serving.not-an-agent-server",
            f"{self.url} is not an agent server; give the address without /invoke, e.g. http://127.0.0.1:8000",
        )

    def _describe_problem(self, data: bytes, response: httpx.Response | None) -> GumshoeError:
        """Return the error for a problem (RFC 9457), from a response or from an event of a stream."""
        try:
            problem = json.loads(data)
            status = response.status_code if response else int(problem["status"])
            message = f"{self.url} answered {status}: {problem['title']}: {problem['detail']}"
            found = _CODE.fullmatch(str(problem.get("type")))
            code = found[1] if found else "serving.request-rejected"
            message += "; give the address without /invoke" if code == "serving.not-found" else ""
        except (ValueError, KeyError, TypeError):  # of a proxy, or of another server
            if response is None or not _is_temporary(response.status_code):
                return self._not_a_server_error()
            problem, status, code = {}, response.status_code, "serving.unreachable"
            message = f"{self.url} cannot be reached: a proxy answered {status}; try again later"
        after = response.headers.get("retry-after", "") if response else ""
        return _choose_class(status)(
            code,
            message,
            status=status,
            request_id=problem.get("request_id"),
            retry_after=float(after) if after.isdecimal() else None,
        )


def _question_body(
    question: str, inbox: str | None, date: datetime.date | str | None, session: str | None
) -> dict[str, str | None]:
    return {"question": question, "inbox_address": inbox, "query_date": _format_date(date), "session_id": session}


def _format_date(date: datetime.date | str | None) -> str | None:
    """Return a date as YYYY-MM-DD.

    Raises:
        UsageError: if a text is not a date.
    """
    try:
        day = datetime.date.fromisoformat(date) if isinstance(date, str) else date
    except ValueError:
        raise UsageError("serving.invalid-date", f"date must be YYYY-MM-DD, got {date!r}") from None
    return None if day is None else day.isoformat()


def _is_temporary(status: int) -> bool:
    return status == _BUSY or status >= _FAILED


def _choose_class(status: int) -> type[AgentServerError]:
    if _is_temporary(status):
        return ServerUnavailableError
    known: dict[int, type[AgentServerError]] = {401: AuthenticationError, 403: InboxForbiddenError}
    return known.get(status, RequestRejectedError)


def _is_worth_retrying(error: BaseException) -> bool:
    if not isinstance(error, ServerUnavailableError) or error.code == _EXHAUSTED:
        return False
    return error.status in _RETRIED


def _choose_pause(state: RetryCallState) -> float:
    """Return the seconds to wait before the next attempt."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after if isinstance(error, ServerUnavailableError) else None
    return min(_LONGEST_PAUSE, _BACKOFF(state) if asked is None else asked)


def _read_events(parts: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield name and data of each server-sent event, without comments.

    Lines end with a line feed only: unlike `httpx.Response.iter_lines`, other separators in mail do not end them.
    """
    buffer = b""
    for part in parts:
        *events, buffer = (buffer + part).split(b"\n\n")
        for event in events:
            pairs = (line.partition(b":") for line in event.split(b"\n") if not line.startswith(b":"))
            fields = {name: value.removeprefix(b" ") for name, _, value in pairs}
            if b"data" in fields:
                yield fields.get(b"event", b"message").decode(), fields[b"data"]
