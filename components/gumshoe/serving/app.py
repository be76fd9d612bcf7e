"""Define the agent server's HTTP API. Errors are answered as problems (RFC 9457, application/problem+json)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import date
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.params import Depends
from fastapi.responses import StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import TypeAdapter

from gumshoe.client import responses
from gumshoe.environments.base import SourceText
from gumshoe.mail.identities import IdentityError, parse_identity
from gumshoe.rollouts.answer import Answer, AnswerStep, Cost
from gumshoe.scenarios.scenario import Consent, Scenario, ScenarioError
from gumshoe.serving.access import ForbiddenError, NoCollectionsError, Principal
from gumshoe.serving.api_models import (
    Caller,
    FeedbackBody,
    HealthStatus,
    InvokeBody,
    QuestionBody,
    ReadyStatus,
    SourceBody,
)
from gumshoe.serving.audit_log import record_access
from gumshoe.serving.errors import (
    HANDLED_ERRORS,
    RefusedRequestError,
    build_error_response,
    describe_error,
    log_unexpected,
)
from gumshoe.serving.feedback_limit import FeedbackLimit
from gumshoe.serving.feedback_recorder import FeedbackRecorder
from gumshoe.serving.given_feedback import KnownAnswer, add_known_answer, find_known_answer
from gumshoe.serving.openapi import (
    AGENT,
    ANY_REQUEST,
    ASKING,
    AUTHENTICATED,
    EVENT_STREAM,
    GIVING_FEEDBACK,
    METRICS_TEXT,
    OPERATIONS,
    QUESTION_EXAMPLES,
    READING_SOURCE,
    AgentApi,
    describe_problems,
    require_credentials,
)
from gumshoe.serving.service import AnswerService
from gumshoe.serving.settings import ServeSettings
from gumshoe.serving.web_page import add_page

_ANSWER, _STEP, _COST = TypeAdapter(Answer), TypeAdapter(AnswerStep), TypeAdapter(Cost | None)
_INVALID = 422
_FIELDS = {
    "scenarios.empty-question": "question",
    "scenarios.invalid-inbox": "inbox_address",
    "scenarios.invalid-query-date": "query_date",
}
"""Field of the request by code of a `ScenarioError`."""
_EARLY = 0.5  # seconds in which a failure sets the status of a streamed response
_PULSE = 15.0  # seconds between keep-alive comments


def build_scenario(
    request: Request, question: str, inbox: str | None, day: date | None, service: AnswerService
) -> Scenario:
    """Build the scenario of a question, after checking that the caller may read its inbox.

    If the index has collections, the scenario names those that the caller may read.

    Raises:
        ForbiddenError: if the caller may not.
        NoCollectionsError: if the caller may not read any collection.
        RefusedRequestError: if the question is invalid, or its inbox is missing or does not exist.
    """
    caller: Principal = request.state.principal
    settings, has_inboxes = service.settings, service.env_factory.has_inboxes
    most = settings.limits.question
    named = inbox or (caller.only_inbox if has_inboxes else None)
    if has_inboxes and named is None:
        raise RefusedRequestError("serving.inbox-missing")
    if not has_inboxes and named is not None:
        raise RefusedRequestError("serving.inbox-not-supported")
    if len(question) > most:
        raise RefusedRequestError(
            "serving.question-too-long", f"question: at most {most:,} characters, got {len(question):,}"
        )
    try:
        named = parse_identity(named) if named is not None else None
        scenario = Scenario.from_question(
            question,
            named,
            service.env_factory.default_query_date(day),
            caller.collections if service.env_factory.has_collections else None,
        )
    except IdentityError as error:
        raise RefusedRequestError("scenarios.invalid-inbox", f"inbox_address: {error.message}") from None
    except ScenarioError as error:
        raise RefusedRequestError(error.code, f"{_FIELDS[error.code]}: {error.message}") from None
    if has_inboxes and not caller.may_read(str(scenario.inbox_address)):
        record_access("refused", scenario)
        raise ForbiddenError
    if scenario.collections == ():
        record_access("refused", scenario)
        raise NoCollectionsError
    if settings.log_questions:
        request.state.log_fields |= {"question": question, "inbox": scenario.inbox_address}
    return scenario.model_copy(update={"id": f"asked-{scenario.digest}"})


def log_answer(request: Request, scenario: Scenario, answer: Answer, settings: ServeSettings) -> None:
    """Add the answer to the request's log line, and write its audit line."""
    record_access("question", scenario, answer.source_ids, policy=answer.policy)
    quoted = {"answer": answer.answer} if settings.log_questions else {}
    fields = {"policy": answer.policy, "success": answer.success, "turns": answer.turns, **quoted}
    fields |= {} if settings.model.samples == 1 else {"cost": _COST.dump_python(answer.cost)}
    request.state.log_fields |= fields


def create_app(settings: ServeSettings, service: AnswerService, recorder: FeedbackRecorder) -> FastAPI:
    """Create the HTTP app. `gumshoe.serving.middleware` must wrap it."""
    app = AgentApi()
    _add_error_handlers(app)

    limit = FeedbackLimit(settings.keeping.feedback_per_hour)
    secured = require_credentials(open_access=settings.access.open)

    def parse_scenario(request: Request, body: QuestionBody) -> Scenario:
        return build_scenario(request, body.question, body.inbox_address, body.query_date, service)

    @app.post(
        "/invoke",
        summary="Ask a question",
        response_model=responses.AgentAnswer,
        response_description="The answer. `success` says if there is one.",
        responses=describe_problems(ASKING),
        openapi_extra=QUESTION_EXAMPLES,
        dependencies=secured,
        tags=[AGENT],
    )
    async def invoke(body: InvokeBody, request: Request) -> Response:
        """Answer a question from an inbox, or from documents."""
        scenario = parse_scenario(request, body)
        answer = await service.answer(scenario, body.session_id, lambda _: None, request.state.caller)
        log_answer(request, scenario, answer, settings)
        shown = answer if body.steps else replace(answer, steps=(), handles={})
        return Response(_ANSWER.dump_json(shown), media_type="application/json")

    @app.post(
        "/invoke/stream",
        summary="Ask a question and stream the steps",
        response_class=StreamingResponse,
        responses={200: EVENT_STREAM, **describe_problems(ASKING)},
        openapi_extra=QUESTION_EXAMPLES,
        dependencies=secured,
        tags=[AGENT],
    )
    async def invoke_stream(body: InvokeBody, request: Request) -> StreamingResponse:
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

        work = asyncio.create_task(service.answer(scenario, body.session_id, put, request.state.caller))
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
                log_answer(request, scenario, answer, settings)
                yield _format_event("answer", _ANSWER.dump_json(answer))
            except Exception as error:  # noqa: BLE001 - the status was already sent
                log_unexpected(error)
                yield _format_event("problem", describe_error(error).model_dump_json().encode())

        return StreamingResponse(send_events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def add_answer(request: Request, scenario: Scenario, known: KnownAnswer, consent: Consent) -> Scenario:
        """Return the scenario with what the caller says is correct, the caller, the time and the consent."""
        what, where = _name_source(service)
        learned = add_known_answer(scenario, known, request.state.principal.pseudonym, consent, what)
        missing = await service.find_missing_sources(learned, request.state.caller)
        if missing:
            raise RefusedRequestError(
                "serving.source-not-found", f"{what} {missing[0]!r} does not exist{where}", status=_INVALID
            )
        return learned

    @app.post(
        "/feedback",
        status_code=202,
        summary="Give feedback on an answer",
        response_description="The result. `kept` says if the question was accepted.",
        responses=describe_problems(GIVING_FEEDBACK),
        dependencies=secured,
        tags=[AGENT],
    )
    async def give_feedback(body: FeedbackBody, request: Request) -> responses.FeedbackResult:
        """Accept a question with its correct answer and sources, or as unanswerable. Otherwise, nothing is stored.

        The server publishes what it has accepted within `keeping.every` seconds, and when it stops.

        With `policy`, the verdict also counts in the measures of that policy, which decide about a canary.
        """
        scenario = build_scenario(request, body.question, body.inbox_address, body.query_date, service)
        if service.env_factory.has_inboxes and body.query_date is None:
            raise RefusedRequestError("serving.query-date-missing")
        if not settings.keeping.feedback:
            raise RefusedRequestError("serving.feedback-disabled")
        consent = body.consent or settings.keeping.consent
        known = find_known_answer(body)
        is_kept = known is not None
        if known is not None:
            _check_feedback_limit(limit, request.state.caller)
            is_kept = recorder.record_feedback(await add_answer(request, scenario, known, consent))
        sources = known.sources if known is not None and is_kept else ()
        about = {"right": body.right, "unanswerable": body.unanswerable, "kept": is_kept}
        record_access("feedback", scenario, sources, **about, given_by=request.state.principal.pseudonym)
        service.metrics.policies.count_verdict(body.policy, body.verdict, request.state.caller, scenario.digest)
        request.state.log_fields |= about
        return responses.FeedbackResult(kept=is_kept)

    @app.get(
        "/principal",
        summary="Show the caller",
        response_description="The caller.",
        responses=describe_problems(AUTHENTICATED),
        dependencies=secured,
        tags=[AGENT],
    )
    async def get_principal(request: Request) -> Caller:
        """Return the caller, and the inboxes and collections of documents that it may read."""
        caller: Principal = request.state.principal
        return Caller(
            name=caller.name,
            inboxes=list(caller.patterns),
            collections=list(caller.collections),
            has_inboxes=service.env_factory.has_inboxes,
            feedback=settings.keeping.feedback,
            consent=settings.keeping.consent,
            sources=service.env_factory.reads_sources,
        )

    _add_source_route(app, service, secured)
    _add_operator_routes(app, settings, service)
    add_page(app)
    return app


def _add_source_route(app: FastAPI, service: AnswerService, secured: list[Depends]) -> None:
    """Add the route that reads a source. Its request is a POST so that no access log contains an inbox or an id."""

    @app.post(
        "/source",
        summary="Read a source of an answer",
        response_model=responses.CitedText,
        response_description="The source with its text.",
        responses=describe_problems(READING_SOURCE),
        dependencies=secured,
        tags=[AGENT],
    )
    async def read_source(body: SourceBody, request: Request) -> SourceText:
        """Read a source of an answer: a message in an inbox, or a document.

        A message that is not in the inbox on that day is not found, even if another inbox contains it. The text is
        plain text, shortened to 200,000 characters. That of a message includes its attachments.
        """
        scenario = build_scenario(request, "Read a source.", body.inbox_address, body.query_date, service)
        if not service.env_factory.reads_sources:
            raise RefusedRequestError("serving.sources-not-readable")
        found = await service.read_source(scenario, body.source_id, request.state.caller)
        record_access("source", scenario, [found.source.id] if found else [])
        if found is None:
            what, where = _name_source(service)
            raise RefusedRequestError("serving.source-not-found", f"{what} {body.source_id!r} does not exist{where}")
        return found


def _check_feedback_limit(limit: FeedbackLimit, caller: str) -> None:
    if seconds := limit.admit(caller):
        raise RefusedRequestError(
            "serving.too-much-feedback",
            f"At most {limit.limit:,} feedback records per hour. Try again in {seconds:,} seconds.",
            headers={"Retry-After": str(seconds)},
        )


def _name_source(service: AnswerService) -> tuple[str, str]:
    """Return the noun for a source, and the place to name with it in an error, e.g. "message" and " in that inbox"."""
    return ("message", " in that inbox") if service.env_factory.has_inboxes else ("document", "")


def _add_operator_routes(app: FastAPI, settings: ServeSettings, service: AnswerService) -> None:
    """Add the routes for operators. None of them reveals mail."""

    @app.get(
        "/healthz",
        summary="Check that the process works",
        response_description="The process works.",
        responses=describe_problems(ANY_REQUEST),
        tags=[OPERATIONS],
    )
    async def get_health() -> HealthStatus:
        """Report that the process works."""
        return HealthStatus()

    @app.get(
        "/readyz",
        summary="Check that questions can be answered",
        response_description="Questions can be answered.",
        responses=describe_problems([*ANY_REQUEST, "serving.not-ready"]),
        tags=[OPERATIONS],
    )
    async def get_readiness() -> ReadyStatus:
        """Report if questions can be answered: the index is open, and the model has its adapter."""
        if service.problem:
            raise RefusedRequestError("serving.not-ready", service.problem)
        opened = (*service.candidates, *([service.fallback] if service.fallback else ()))
        return ReadyStatus(policies=[each.name.version for each in opened])

    if settings.metrics_port is not None:
        return

    @app.get(
        "/metrics",
        summary="Read the metrics",
        response_class=Response,
        responses={200: METRICS_TEXT, **describe_problems(ANY_REQUEST)},
        tags=[OPERATIONS],
    )
    async def get_metrics() -> Response:
        """Return the metrics for Prometheus."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _add_error_handlers(app: FastAPI) -> None:
    """Answer every error with a problem."""

    async def handle(request: Request, error: Exception) -> Response:
        return build_error_response(error, request.url.path)

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
