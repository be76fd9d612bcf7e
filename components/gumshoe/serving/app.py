"""The agent server's HTTP interface. What goes wrong is told as a problem (RFC 9457, application/problem+json)."""

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

from gumshoe.errors import faults_of
from gumshoe.rollouts.answer import Answer, AnswerStep, Cost
from gumshoe.scenarios.scenario import Scenario, ScenarioError
from gumshoe.serving.access import ForbiddenError, Principal
from gumshoe.serving.ask import PROBLEM_TYPE
from gumshoe.serving.errors import KINDS, RefusedRequestError, answer_to, log_unexpected, problem, problem_of
from gumshoe.serving.feedback_recorder import FeedbackRecorder
from gumshoe.serving.service import AnswerService
from gumshoe.serving.settings import ServeSettings

_PAGE = Path(__file__).parent / "page"
_ANSWER, _STEP, _COST = TypeAdapter(Answer), TypeAdapter(AnswerStep), TypeAdapter(Cost | None)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
_EARLY = 0.5  # seconds in which a stream that fails is told so by its status
_PULSE = 15.0  # seconds between signs of life


class QuestionBody(BaseModel):
    """A question: about one inbox, where the server answers from mail."""

    model_config = ConfigDict(extra="forbid")

    question: str = Field(min_length=1, description="What to find out.")
    inbox_address: str | None = Field(
        None,
        max_length=320,
        description="Whose mail; where the caller may read one inbox only, that is taken. None for documents.",
    )
    query_date: date | None = Field(None, description="Nothing sent later is seen; today, of mail, unless given.")
    session_id: str | None = Field(None, max_length=200, description="One session is answered by one policy.")
    steps: bool = Field(False, description="Whether what was done is to be told too.")


Id = Annotated[str, Field(min_length=1, max_length=1000)]


class FeedbackBody(BaseModel):
    """What somebody says of an answer."""

    model_config = ConfigDict(extra="forbid")

    question: str = Field(min_length=1)
    inbox_address: str | None = Field(None, max_length=320, description="As it was asked with.")
    query_date: date | None = Field(None, description="As it was answered.")
    answer: str = Field(max_length=10_000, description="The answer returned by /invoke.")
    source_ids: list[Id] = Field(default_factory=list, max_length=20)
    right: bool = Field(description="Whether the answer is right.")
    right_answer: str | None = Field(None, max_length=10_000, description="Correct answer, if known.")
    right_source_ids: list[Id] = Field(
        default_factory=list, max_length=20, description="IDs of the messages or documents that contain it."
    )


class Problem(BaseModel):
    """What went wrong (RFC 9457)."""

    type: str = Field(
        pattern=f"^{PROBLEM_TYPE}",
        description=f"`{PROBLEM_TYPE}` and the error's code, which `gumshoe explain CODE` explains.",
    )
    title: str
    status: int
    detail: str
    request_id: str


class Caller(BaseModel):
    """Who asks."""

    name: str
    inboxes: list[str] = Field(description="Addresses and patterns that it may read.")
    has_inboxes: bool = Field(
        description="Whether a question is about one inbox; or about documents that all may read."
    )
    feedback: bool = Field(description="Whether this server takes what is said of answers.")


def _unwrapped(body: Any) -> Any:
    """What stands in `parameters`, as KFP's and other agents' clients send it, or the object itself."""
    return body["parameters"] if isinstance(body, dict) and set(body) == {"parameters"} else body


Question = Annotated[QuestionBody, BeforeValidator(_unwrapped)]
_ASKED = {"$ref": "#/components/schemas/Asked"}
_EITHER = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "anyOf": [
                        _ASKED,
                        {
                            "type": "object",
                            "properties": {"parameters": _ASKED},
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


def scenario_for(
    request: Request, question: str, inbox: str | None, day: date | None, service: AnswerService
) -> Scenario:
    """The question of somebody who may read the inbox that it is about; documents all may read who may ask.

    Raises:
        ForbiddenError: they may not.
        RefusedRequestError: it is not a valid question, or it lacks an inbox or names one that does not exist here.
    """
    who: Principal = request.state.principal
    settings, has_inboxes = service.settings, service.world.has_inboxes
    most = settings.limits.question
    named = inbox or (who.only_inbox if has_inboxes else None)
    if has_inboxes and named is None:
        raise _invalid("serving.inbox-missing", "inbox_address: required, because you may read several inboxes")
    if not has_inboxes and named is not None:
        raise _invalid("serving.inbox-not-supported", "inbox_address: this server answers from documents; leave it out")
    if len(question) > most:
        raise _invalid("serving.question-too-long", f"question: at most {most:,} characters, got {len(question):,}")
    try:
        asked = Scenario.asked(question, named, service.world.asked_on(day))
    except ScenarioError as error:
        raise _invalid(error.code, error.message) from None
    if has_inboxes and not who.may_read(str(asked.inbox_address)):
        raise ForbiddenError
    if settings.log_questions:
        request.state.told |= {"question": question, "inbox": asked.inbox_address}
    return asked.model_copy(update={"id": f"asked-{asked.digest}"})


def note(request: Request, answer: Answer, settings: ServeSettings) -> None:
    """Have the request's line in the log say what came of it."""
    quoted = {"answer": answer.answer} if settings.log_questions else {}
    told = {"policy": answer.policy, "success": answer.success, "turns": answer.turns, **quoted}
    request.state.told |= told if settings.model.samples == 1 else {**told, "cost": _COST.dump_python(answer.cost)}


def make_app(settings: ServeSettings, service: AnswerService, keeper: FeedbackRecorder) -> FastAPI:
    """The routes; `gumshoe.serving.middleware` stands before them."""
    app = FastAPI(title="Gumshoe", docs_url=None, redoc_url=None, responses=_PROBLEMS)
    _explain(app)

    def asked_by(request: Request, asked: QuestionBody) -> Scenario:
        return scenario_for(request, asked.question, asked.inbox_address, asked.query_date, service)

    @app.post("/invoke", openapi_extra=_EITHER, response_model=Answer)
    async def invoke(asked: Question, request: Request) -> Response:
        """Answer a question about an inbox, or from documents."""
        answer = await service.answer(asked_by(request, asked), asked.session_id, lambda _: None)
        note(request, answer, settings)
        told = answer if asked.steps else replace(answer, steps=())
        return Response(_ANSWER.dump_json(told), media_type="application/json")

    @app.post("/invoke/stream", openapi_extra=_EITHER, response_class=StreamingResponse)
    async def stream(asked: Question, request: Request) -> StreamingResponse:
        """The same, with every step as it is taken: server-sent events `step`, and at last `answer` or `problem`. Where
        one of several samples answers, its steps come when it is chosen.
        """
        scenario = asked_by(request, asked)
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[AnswerStep | None] = asyncio.Queue()

        def tell(step: AnswerStep | None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(events.put_nowait, step)

        def end(done: asyncio.Task[Answer]) -> None:
            tell(None)
            if not done.cancelled():
                done.exception()  # or asyncio complains where nobody is there to be told of it

        work = asyncio.create_task(service.answer(scenario, asked.session_id, tell))
        work.add_done_callback(end)
        request_task = asyncio.current_task()
        if request_task is not None:  # ends when all has been sent, or when whoever asked has left
            request_task.add_done_callback(lambda _: work.cancel())
        done, _ = await asyncio.wait({work}, timeout=_EARLY)
        if done and work.exception() is not None:
            work.result()  # raises: it is told as for /invoke

        async def sent() -> AsyncIterator[bytes]:
            try:
                while (step := await _next(events)) is not None:
                    yield b": alive\n\n" if step == "alive" else _event("step", _STEP.dump_json(step))
                answer = await work
                note(request, answer, settings)
                yield _event("answer", _ANSWER.dump_json(answer))
            except Exception as error:  # noqa: BLE001 - its status has been sent
                log_unexpected(error)
                yield _event("problem", json.dumps(problem(*problem_of(error))).encode())

        return StreamingResponse(sent(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def known(scenario: Scenario, answer: str | None, sources: list[str]) -> Scenario:
        """The question with its right answer, and the messages, or documents, that this stands in."""
        fields = scenario.model_dump(include={"question", "inbox_address", "query_date"}, exclude_none=True)
        name = f"asked-{scenario.digest}-{secrets.token_hex(4)}"
        what, where = ("message", " in that inbox") if service.world.has_inboxes else ("document", "")
        try:
            learned = Scenario.model_validate({"id": name, **fields, "answer": answer, f"{what}_ids": sources})
        except ValidationError as error:
            raise _invalid("serving.invalid-answer", faults_of(error)) from None
        missing = await service.missing(learned)
        if missing:
            raise _invalid("serving.source-not-found", f"{what} {missing[0]!r} does not exist{where}")
        return learned

    @app.post("/feedback", status_code=202)
    async def feedback(judged: FeedbackBody, request: Request) -> dict[str, bool]:
        """Keep a question with its right answer and where that stands, to learn from; without both nothing is kept."""
        scenario = scenario_for(request, judged.question, judged.inbox_address, judged.query_date, service)
        if service.world.has_inboxes and judged.query_date is None:
            raise _invalid("serving.query-date-missing", "query_date: required, the day as of which it was answered")
        if not settings.keeping.feedback:
            raise RefusedRequestError(
                "serving.feedback-disabled", 404, "Feedback disabled", "The operator can enable it: keeping.feedback."
            )
        answer, sources = judged.right_answer, judged.right_source_ids
        if judged.right:
            answer, sources = judged.answer, judged.source_ids
        is_kept = bool(answer and sources)
        if is_kept:
            keeper.feedback(await known(scenario, answer, sources))
        request.state.told |= {"right": judged.right, "kept": is_kept}
        return {"kept": is_kept}

    @app.get("/principal")
    async def principal(request: Request) -> Caller:
        """Who asks, and what they may read."""
        who: Principal = request.state.principal
        return Caller(
            name=who.name,
            inboxes=list(who.patterns),
            has_inboxes=service.world.has_inboxes,
            feedback=settings.keeping.feedback,
        )

    _add_operations(app, service)
    return app


def _add_operations(app: FastAPI, service: AnswerService) -> None:
    """What operators and browsers ask for; nothing of it tells of mail."""

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether this process works."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz() -> Response:
        """Whether questions can be answered: the index is open, and the model is there and has its adapter."""
        trouble = service.trouble
        service.metrics.ready.set(not trouble)
        if trouble:
            raise RefusedRequestError("serving.not-ready", 503, "Not ready", trouble)
        return JSONResponse({"status": "ready", "policies": [each.name.version for each in service.candidates]})

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """For Prometheus."""
        service.metrics.ready.set(not service.trouble)
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    for path, name, kind in (
        ("/", "page.html", "text/html"),
        ("/page.js", "page.js", "text/javascript"),
        ("/page.css", "page.css", "text/css"),
    ):
        app.add_route(path, _page((_PAGE / name).read_bytes(), kind), include_in_schema=False)


def _page(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    headers = {"Content-Security-Policy": _POLICY, "X-Frame-Options": "DENY"}

    async def page(request: Request) -> Response:  # noqa: ARG001
        return Response(content, headers=headers, media_type=kind)

    return page


def _explain(app: FastAPI) -> None:
    """Have every error told as a problem."""

    async def told_of(request: Request, error: Exception) -> Response:  # noqa: ARG001
        return answer_to(error)

    for kind in KINDS:  # what nobody thought of the framework raises again, and `Middleware` logs it
        app.add_exception_handler(kind, told_of)


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


async def _next(events: asyncio.Queue[AnswerStep | None]) -> Any:
    """The next step; None where there is no other, and `alive` where it takes long."""
    try:
        async with asyncio.timeout(_PULSE):
            return await events.get()
    except TimeoutError:
        return "alive"
