"""Define the agent server's HTTP API. Errors are answered as problems (RFC 9457, application/problem+json)."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from gumshoe.errors import describe_validation_error
from gumshoe.rollouts.answer import Answer, AnswerStep, Cost
from gumshoe.scenarios.scenario import Scenario, ScenarioError
from gumshoe.serving.access import ForbiddenError, Principal
from gumshoe.serving.ask import PROBLEM_TYPE
from gumshoe.serving.errors import (
    HANDLED_ERRORS,
    RefusedRequestError,
    build_error_response,
    describe_error,
    format_problem,
    log_unexpected,
)
from gumshoe.serving.feedback_recorder import FeedbackRecorder
from gumshoe.serving.service import AnswerService
from gumshoe.serving.settings import ServeSettings

_PAGE = Path(__file__).parent / "page"
_ANSWER, _STEP, _COST = TypeAdapter(Answer), TypeAdapter(AnswerStep), TypeAdapter(Cost | None)
_CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
_EARLY = 0.5  # seconds in which a failure sets the status of a streamed response
_PULSE = 15.0  # seconds between keep-alive comments


class QuestionBody(BaseModel):
    """A question, about one inbox if the server answers from mail."""

    model_config = ConfigDict(extra="forbid")

    question: str = Field(min_length=1, description="The question.")
    inbox_address: str | None = Field(
        None,
        max_length=320,
        description="Address of the inbox to search. Optional if the caller may read only one; omit for documents.",
    )
    query_date: date | None = Field(
        None, description="Later messages are ignored. Default: today for mail, none for documents."
    )
    session_id: str | None = Field(
        None, max_length=200, description="Questions of one session are answered by the same policy."
    )
    steps: bool = Field(False, description="Return the steps too: each tool call with its result.")


Id = Annotated[str, Field(min_length=1, max_length=1000)]


class FeedbackBody(BaseModel):
    """Feedback about an answer."""

    model_config = ConfigDict(extra="forbid")

    question: str = Field(min_length=1)
    inbox_address: str | None = Field(None, max_length=320, description="Inbox of the question.")
    query_date: date | None = Field(None, description="The query_date in the answer.")
    answer: str = Field(max_length=10_000, description="The answer returned by /invoke.")
    source_ids: list[Id] = Field(default_factory=list, max_length=20)
    right: bool = Field(description="True if the answer is correct.")
    right_answer: str | None = Field(None, max_length=10_000, description="Correct answer, if known.")
    right_source_ids: list[Id] = Field(
        default_factory=list, max_length=20, description="IDs of the messages or documents that contain it."
    )


class Problem(BaseModel):
    """A problem (RFC 9457)."""

    type: str = Field(
        pattern=f"^{PROBLEM_TYPE}",
        description=f"`{PROBLEM_TYPE}` followed by the error code. `gumshoe explain CODE` describes it.",
    )
    title: str
    status: int
    detail: str
    request_id: str


class Caller(BaseModel):
    """The authenticated caller."""

    name: str
    inboxes: list[str] = Field(description="Addresses and patterns of the inboxes that the caller may read.")
    has_inboxes: bool = Field(
        description="True if the server answers from inboxes, false if it answers from documents."
    )
    feedback: bool = Field(description="True if the server accepts feedback.")


def _unwrap(body: Any) -> Any:
    """Return the content of `parameters`, which KFP and other agents send, or the object itself."""
    return body["parameters"] if isinstance(body, dict) and set(body) == {"parameters"} else body


InvokeBody = Annotated[QuestionBody, BeforeValidator(_unwrap)]
_QUESTION_REF = {"$ref": "#/components/schemas/QuestionBody"}
_BODY_SCHEMA = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        _QUESTION_REF,
                        {
                            "type": "object",
                            "properties": {"parameters": _QUESTION_REF},
                            "required": ["parameters"],
                            "additionalProperties": False,
                        },
                    ]
                }
            }
        },
    }
}
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": title, "content": {"application/problem+json": {}}}
    for status, title in {
        400: "Invalid request",
        401: "Authentication required",
        403: "Forbidden",
        413: "Request too large",
        422: "Invalid request",
        429: "Too many requests",
        502: "Model failed",
        503: "Not available",
        504: "Timeout",
    }.items()
}


def _invalid(code: str, detail: str) -> RefusedRequestError:
    return RefusedRequestError(code, 422, "Invalid request", detail)


def build_scenario(
    request: Request, question: str, inbox: str | None, day: date | None, service: AnswerService
) -> Scenario:
    """Build the scenario of a question, after checking that the caller may read its inbox.

    Raises:
        ForbiddenError: if the caller may not.
        RefusedRequestError: if the question is invalid, or its inbox is missing or does not exist.
    """
    caller: Principal = request.state.principal
    settings, has_inboxes = service.settings, service.env_factory.has_inboxes
    most = settings.limits.question
    named = inbox or (caller.only_inbox if has_inboxes else None)
    if has_inboxes and named is None:
        raise _invalid("serving.inbox-missing", "inbox_address: required, because you may read several inboxes")
    if not has_inboxes and named is not None:
        raise _invalid("serving.inbox-not-supported", "inbox_address: this server answers from documents; leave it out")
    if len(question) > most:
        raise _invalid("serving.question-too-long", f"question: at most {most:,} characters, got {len(question):,}")
    try:
        scenario = Scenario.from_question(question, named, service.env_factory.default_query_date(day))
    except ScenarioError as error:
        raise _invalid(error.code, error.message) from None
    if has_inboxes and not caller.may_read(str(scenario.inbox_address)):
        raise ForbiddenError
    if settings.log_questions:
        request.state.log_fields |= {"question": question, "inbox": scenario.inbox_address}
    return scenario.model_copy(update={"id": f"asked-{scenario.digest}"})


def log_answer(request: Request, answer: Answer, settings: ServeSettings) -> None:
    """Add the answer to the request's log line."""
    quoted = {"answer": answer.answer} if settings.log_questions else {}
    fields = {"policy": answer.policy, "success": answer.success, "turns": answer.turns, **quoted}
    fields |= {} if settings.model.samples == 1 else {"cost": _COST.dump_python(answer.cost)}
    request.state.log_fields |= fields


def create_app(settings: ServeSettings, service: AnswerService, recorder: FeedbackRecorder) -> FastAPI:
    """Create the HTTP app. `gumshoe.serving.middleware` must wrap it."""
    app = FastAPI(title="Gumshoe", docs_url=None, redoc_url=None, responses=_PROBLEMS)
    _add_error_handlers(app)

    def parse_scenario(request: Request, body: QuestionBody) -> Scenario:
        return build_scenario(request, body.question, body.inbox_address, body.query_date, service)

    @app.post("/invoke", openapi_extra=_BODY_SCHEMA, response_model=Answer)
    async def invoke(body: InvokeBody, request: Request) -> Response:
        """Answer a question from an inbox, or from documents."""
        answer = await service.answer(parse_scenario(request, body), body.session_id, lambda _: None)
        log_answer(request, answer, settings)
        shown = answer if body.steps else replace(answer, steps=())
        return Response(_ANSWER.dump_json(shown), media_type="application/json")

    @app.post("/invoke/stream", openapi_extra=_BODY_SCHEMA, response_class=StreamingResponse)
    async def stream(body: InvokeBody, request: Request) -> StreamingResponse:
        """Answer a question like /invoke, and stream each step.

        The server-sent events are `step` for each step, and finally `answer` or `problem`. With several samples, the
        steps of the chosen one are sent when it is chosen.
        """
        scenario = parse_scenario(request, body)
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[AnswerStep | None] = asyncio.Queue()

        def put(step: AnswerStep | None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(events.put_nowait, step)

        def end(done: asyncio.Task[Answer]) -> None:
            put(None)
            if not done.cancelled():
                done.exception()  # otherwise asyncio warns if the client has disconnected

        work = asyncio.create_task(service.answer(scenario, body.session_id, put))
        work.add_done_callback(end)
        request_task = asyncio.current_task()
        if request_task is not None:  # ends when all has been sent, or when the client disconnects
            request_task.add_done_callback(lambda _: work.cancel())
        done, _ = await asyncio.wait({work}, timeout=_EARLY)
        if done and work.exception() is not None:
            work.result()  # raises, so that the error is answered as for /invoke

        async def send_events() -> AsyncIterator[bytes]:
            try:
                while (step := await _next_step(events)) is not None:
                    yield b": alive\n\n" if step == "alive" else _format_event("step", _STEP.dump_json(step))
                answer = await work
                log_answer(request, answer, settings)
                yield _format_event("answer", _ANSWER.dump_json(answer))
            except Exception as error:  # noqa: BLE001 - the status was already sent
                log_unexpected(error)
                yield _format_event("problem", json.dumps(format_problem(*describe_error(error))).encode())

        return StreamingResponse(send_events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def add_answer(scenario: Scenario, answer: str | None, sources: list[str]) -> Scenario:
        """Return the scenario with its correct answer and the messages or documents that contain it."""
        fields = scenario.model_dump(include={"question", "inbox_address", "query_date"}, exclude_none=True)
        name = f"asked-{scenario.digest}-{secrets.token_hex(4)}"
        what, where = ("message", " in that inbox") if service.env_factory.has_inboxes else ("document", "")
        try:
            learned = Scenario.model_validate({"id": name, **fields, "answer": answer, f"{what}_ids": sources})
        except ValidationError as error:
            raise _invalid("serving.invalid-answer", describe_validation_error(error)) from None
        missing = await service.find_missing_sources(learned)
        if missing:
            raise _invalid("serving.source-not-found", f"{what} {missing[0]!r} does not exist{where}")
        return learned

    @app.post("/feedback", status_code=202)
    async def feedback(body: FeedbackBody, request: Request) -> dict[str, bool]:
        """Store a question with its correct answer and sources for training. Without both, nothing is stored."""
        scenario = build_scenario(request, body.question, body.inbox_address, body.query_date, service)
        if service.env_factory.has_inboxes and body.query_date is None:
            raise _invalid("serving.query-date-missing", "query_date: required, the day as of which it was answered")
        if not settings.keeping.feedback:
            raise RefusedRequestError(
                "serving.feedback-disabled", 404, "Feedback disabled", "The operator can enable it: keeping.feedback."
            )
        answer, sources = body.right_answer, body.right_source_ids
        if body.right:
            answer, sources = body.answer, body.source_ids
        is_kept = bool(answer and sources)
        if is_kept:
            recorder.record_feedback(await add_answer(scenario, answer, sources))
        request.state.log_fields |= {"right": body.right, "kept": is_kept}
        return {"kept": is_kept}

    @app.get("/principal")
    async def principal(request: Request) -> Caller:
        """Return the caller and the inboxes that it may read."""
        caller: Principal = request.state.principal
        return Caller(
            name=caller.name,
            inboxes=list(caller.patterns),
            has_inboxes=service.env_factory.has_inboxes,
            feedback=settings.keeping.feedback,
        )

    _add_operator_routes(app, service)
    return app


def _add_operator_routes(app: FastAPI, service: AnswerService) -> None:
    """Add the routes for operators and browsers. None of them reveals mail."""

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Report that the process works."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> Response:
        """Report if questions can be answered: the index is open, and the model has its adapter."""
        reason = service.problem
        service.metrics.ready.set(not reason)
        if reason:
            raise RefusedRequestError("serving.not-ready", 503, "Not ready", reason)
        return JSONResponse({"status": "ready", "policies": [each.name.version for each in service.candidates]})

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return the metrics for Prometheus."""
        service.metrics.ready.set(not service.problem)
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    for path, name, kind in (
        ("/", "page.html", "text/html"),
        ("/page.js", "page.js", "text/javascript"),
        ("/page.css", "page.css", "text/css"),
    ):
        app.add_route(path, _serve_file((_PAGE / name).read_bytes(), kind), include_in_schema=False)


def _serve_file(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    headers = {"Content-Security-Policy": _CONTENT_SECURITY_POLICY, "X-Frame-Options": "DENY"}

    async def page(request: Request) -> Response:  # noqa: ARG001
        return Response(content, headers=headers, media_type=kind)

    return page


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every error with a problem."""

    async def handle(request: Request, error: Exception) -> Response:  # noqa: ARG001
        return build_error_response(error)

    for kind in HANDLED_ERRORS:  # the framework raises unexpected ones again, and `Middleware` logs them
        app.add_exception_handler(kind, handle)


def _format_event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


async def _next_step(events: asyncio.Queue[AnswerStep | None]) -> Any:
    """Return the next step, None at the end, or `alive` if it takes long."""
    try:
        async with asyncio.timeout(_PULSE):
            return await events.get()
    except TimeoutError:
        return "alive"
