"""The state of one episode whose agent calls the policy and the tools itself."""

import asyncio
import hashlib
import json
import secrets
from array import array
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from gumshoe.environments.base import Unusable
from gumshoe.environments.registry import FINAL_ANSWER
from gumshoe.environments.tools import (
    BadArgumentsError,
    Call,
    Toolbox,
    ToolError,
    UnknownToolError,
    describe_unknown_tool,
)
from gumshoe.errors import UnavailableError, UsageError
from gumshoe.gateway.agent_clock import AgentClock
from gumshoe.gateway.conversation_tree import Conversation, ConversationTree
from gumshoe.gateway.gateway_errors import (
    ContextFullError,
    EpisodeFailedError,
    GatewayError,
    InvalidRequestError,
    LimitReachedError,
    TooManyRequestsError,
    UnknownKeyError,
)
from gumshoe.gateway.messages import ModelRequest, ModelResponse, SampledMessage
from gumshoe.inference.policy import PolicyError
from gumshoe.inference.vllm_policy import VLLMConversation, VLLMPolicy
from gumshoe.rollouts.agent_settings import AgentSettings
from gumshoe.rollouts.episode import EpisodeStart, Turn
from gumshoe.rollouts.trajectory import Mistake, Trajectory
from gumshoe.rollouts.turn_sampler import MAX_TOKEN_CHARACTERS, MIN_TURN_TOKENS, SampledTurn, TurnSampler

if TYPE_CHECKING:
    from gumshoe.gateway.foreign_tools import ForeignTools

_FAILED = "the policy or a tool failed, so the episode ends here and will be run again"
_ANSWERED = "Error: the final answer was given, so nothing else can be called"


class AgentEpisode:
    """An episode that an agent runs: it requests turns of the policy and calls tools, until it answers or ends.

    All methods are called in the event loop. Once `end` or `close` was called, nothing changes the trajectory any more,
    and an agent that was abandoned can neither call the policy nor a tool.
    """

    def __init__(
        self,
        start: EpisodeStart,
        sampler: TurnSampler,
        max_context: int,
        settings: AgentSettings,
        foreign: "ForeignTools | None" = None,
    ) -> None:
        self.key = secrets.token_urlsafe(32)
        self.clock = AgentClock(settings.deadline)
        self.trajectory = Trajectory.begin(start.environment, start.sample)
        self.failure: Exception | None = None
        """Failure of infrastructure, or what a defective tool raised, which makes the episode worthless."""
        self._start, self._sampler, self._settings = start, sampler, settings
        self._max_context, self._foreign = max_context, foreign
        self._tree = ConversationTree(sampler.chat)
        self._requested = Counter[bytes]()  # turns by the digest of their history
        self._reserved = 0  # tokens that the turns that are being sampled may have
        self._running = self._tool_calls = self._call_ids = self._early_events = 0
        self._noted = set[str]()  # unknown tools that the last turn called, whose mistakes are noted
        self._tool_lock = asyncio.Lock()  # environments are not made for several calls at once
        self._tool_task: asyncio.Task[str] | None = None  # event loops hold tasks only weakly
        self._limit: Literal["", "max turns", "context full"] = ""
        self._is_over = False

    @property
    def has_reached_limit(self) -> bool:
        """True if a turn was refused, because the episode had used up its turns, tokens or context."""
        return bool(self._limit)

    @property
    def has_answered(self) -> bool:
        """True if the final answer was given, which nothing changes any more."""
        return self._start.environment.finished and self.failure is None

    @property
    def toolbox(self) -> Toolbox:
        """The tools of the episode."""
        return self._start.environment.toolbox

    # Turns of the policy.

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Sample one or more turns, and add them to the trajectory.

        After the final answer, nothing is sampled: empty turns let the agent end.

        Raises:
            InvalidRequestError: if the conversation cannot be used.
            ContextFullError: if it has no room for another turn.
            LimitReachedError: if the episode has used up its turns or tokens.
            TooManyRequestsError: if requests that are running may use up its tokens.
            EpisodeFailedError: if the policy did not answer; the episode will be run again.
            UnknownKeyError: if the episode is over.
        """
        self._check_running()
        if self.has_answered:
            return self._respond([SampledMessage("", (), "", "stop")] * request.samples)
        self._check_limits(request.samples)
        conversation = self._compose(request)
        room = self._max_context - len(conversation.ids)
        if room < MIN_TURN_TOKENS:
            raise self._fill_context(f"{len(conversation.ids):,} tokens")
        sampler = self._limit_sampler(request, conversation.before)
        sample = partial(self._sample, sampler, conversation, request, room)
        reserved = request.samples * min(sampler.max_turn_tokens, room)
        self._running += request.samples
        self._reserved += reserved
        try:
            with self.clock.pause():
                turns = await _run_all([sample(self._next_seed(conversation.ids)) for _ in range(request.samples)])
        except UnavailableError as error:
            self.failure = self.failure or error
            raise EpisodeFailedError("gateway.episode-failed", _FAILED) from None
        finally:
            self._running -= request.samples
            self._reserved -= reserved
        self._check_running()
        given = [self._give(turn, request) for turn in turns]
        for turn, message in zip(turns, given, strict=True):
            self._add(turn, *self._tree.add(conversation, turn, message))
            self._note_unknown_tools(turn.parsed.calls, request.tools)
        return self._respond(given, turns)

    def _respond(self, given: Sequence[SampledMessage], turns: Sequence[SampledTurn] = ()) -> ModelResponse:
        return ModelResponse(
            self.trajectory.policy,
            tuple(given),
            sum(each.usage.prompt_tokens for each in turns),
            sum(each.usage.completion_tokens for each in turns),
            id=f"{self.trajectory.turns}-{secrets.token_hex(8)}",
        )

    def _compose(self, request: ModelRequest) -> Conversation:
        """Return the conversation of a request in token ids.

        Raises:
            InvalidRequestError: if it cannot be used.
            ContextFullError: if it has so much text that it has no room, however many characters a token has.
        """
        size = _count_characters(request)
        if size > MAX_TOKEN_CHARACTERS * self._max_context:
            raise self._fill_context(f"{size:,} characters")
        try:
            return self._tree.compose(request.messages, request.tools)
        except UsageError as error:
            template = self._sampler.chat.template.name  # it may name a directory of this machine
            message = error.message.replace(template, "the chat template")
            raise InvalidRequestError("gateway.cannot-render", message) from None

    def _fill_context(self, found: str) -> ContextFullError:
        """Note that the context is full, and return the error that says so."""
        self._limit = "context full"
        return ContextFullError(
            "gateway.context-full", f"the conversation has {found}, and the maximum is {self._max_context:,} tokens"
        )

    def _check_running(self) -> None:
        if self._is_over:
            raise UnknownKeyError("gateway.unknown-key", "the key belongs to no running episode")
        if self.failure is not None:
            raise EpisodeFailedError("gateway.episode-failed", _FAILED)

    def _check_limits(self, samples: int) -> None:
        turns, left = self._start.limits.max_turns, self._count_tokens_left(samples)
        if self.trajectory.turns + self._running + samples > turns:
            self._limit = "max turns"
            raise LimitReachedError("gateway.turns-exceeded", f"the episode may have {turns} turns of the model")
        tokens = self._settings.max_sampled_tokens
        if tokens is not None and left is not None and left < 1:
            if tokens - self.trajectory.sampled_tokens >= samples:
                raise TooManyRequestsError(
                    "gateway.tokens-reserved", "requests that are running may use up the tokens of the episode"
                )
            self._limit = "max turns"
            raise LimitReachedError("gateway.tokens-exceeded", f"the episode may sample {tokens:,} tokens")

    def _count_tokens_left(self, samples: int) -> int | None:
        """Return how many tokens each of some turns may have, or None if the episode has no limit.

        Turns that are being sampled may still use all that they are allowed.
        """
        tokens = self._settings.max_sampled_tokens
        return None if tokens is None else (tokens - self.trajectory.sampled_tokens - self._reserved) // samples

    def _limit_sampler(self, request: ModelRequest, before: str) -> TurnSampler:
        limits = (request.max_tokens, self._count_tokens_left(request.samples))
        sampler = self._sampler.limit(min(filter(None, limits), default=None))
        if request.json_schema is None:
            return sampler
        self._check_schema(before)
        calls = self._find_openings() if request.tools and request.allows_calls else ()
        schema = json.dumps(request.json_schema)
        return replace(sampler, sampling=replace(sampler.sampling, json_schema=schema, json_alternatives=calls))

    def _check_schema(self, before: str) -> None:
        """Check that a turn after a text can follow a JSON schema.

        Raises:
            InvalidRequestError: if it cannot.
        """
        chat = self._sampler.chat
        if not isinstance(self._sampler.policy, VLLMPolicy | VLLMConversation):
            raise InvalidRequestError(
                "gateway.schema-unsupported", "only policies on vLLM servers can follow a JSON schema"
            )
        if chat.settings.thinking_budget is not None or chat.template.tags.is_open(before):
            raise InvalidRequestError(
                "gateway.schema-unsupported", "a turn that begins with reasoning cannot follow a JSON schema"
            )

    def _find_openings(self) -> tuple[str, ...]:
        """Return the texts with which calls begin, and turns of a JSON schema do not.

        Raises:
            InvalidRequestError: if the model's calls cannot be told from other text by their beginning.
        """
        form = self._sampler.chat.template.form
        if not form.openings():
            raise InvalidRequestError(
                "gateway.schema-unsupported",
                f"a turn cannot be either a call or JSON of a schema, because calls of this model (form {form.name}) "
                "do not begin with a tag; leave out response_format or the tools, or set tool_choice to none",
            )
        return form.openings()

    def _next_seed(self, history: tuple[int, ...]) -> int:
        """Return a seed that depends on the history, and on the number of turns that were requested after it."""
        digest = hashlib.sha256(array("I", history)).digest()
        number = self._requested[digest]
        self._requested[digest] += 1
        seed = hashlib.sha256(f"{self._start.seed}/{number}/".encode() + digest)
        return int(seed.hexdigest()[:8], 16) >> 1

    async def _sample(
        self, sampler: TurnSampler, conversation: Conversation, request: ModelRequest, room: int, seed: int
    ) -> SampledTurn:
        with self._start.observer.sampling() as observe:
            started = asyncio.get_running_loop().time()
            turn = await sampler.sample(conversation.ids, conversation.before, request.tools, room, seed)
            self.trajectory.policy_seconds += asyncio.get_running_loop().time() - started
            observe(Turn(turn.spans, turn.parsed, turn.version, turn.is_full, turn.usage, None, turn.is_cut_off))
        return turn

    def _give(self, turn: SampledTurn, request: ModelRequest) -> SampledMessage:
        """Return a turn as the agent receives it."""
        chat, parsed = self._sampler.chat, turn.parsed
        is_raw = parsed.problem == "unparseable call" or bool(parsed.calls and not request.allows_calls)
        text = (chat.decode_turn(turn.ids)[0] if is_raw else "") or parsed.text
        cuts = [at for at in (text.find(stop) for stop in request.stops) if at >= 0]
        calls = () if is_raw else tuple(replace(each, id=self._next_call_id(each)) for each in parsed.calls)
        sampled = [span for span in turn.spans if span.origin == "sampled"] if request.logprobs else []
        return SampledMessage(
            text[: min(cuts)] if cuts else text,
            calls,
            parsed.reasoning,
            "tool_calls" if calls else "length" if (turn.is_cut_off or turn.is_full) and not cuts else "stop",
            tuple(chat.decode([token]) for span in sampled for token in span.ids),
            tuple(value for span in sampled for value in span.logprobs),
        )

    def _next_call_id(self, call: Call) -> str:
        self._call_ids += 1
        return f"call_{self._call_ids}_{call.id or secrets.token_hex(4)}"

    def _add(self, turn: SampledTurn, spans: Sequence[Any], segment: Any) -> None:
        done = self.trajectory
        try:
            done.spans += done.name_policy(turn.version, spans, may_change=self._start.may_change_policy)
        except PolicyError as error:
            self.failure = error
            raise EpisodeFailedError("gateway.episode-failed", _FAILED) from None
        done.segments += [segment] if segment else []
        done.turns += 1
        done.deeds.append(self._early_events)
        self._early_events = 0
        done.usage = done.usage + turn.usage if done.usage else None
        if turn.parsed.problem == "unparseable call":
            self._note(turn.parsed.problem, turn.parsed.detail)

    def _note_unknown_tools(self, calls: Sequence[Call], tools: Sequence[dict[str, Any]]) -> None:
        """Note calls of tools that the agent does not have. Most frameworks answer them without calling anything."""
        names = [each["function"]["name"] for each in tools]
        self._noted = {call.name for call in calls} - set(names)
        for call in calls:
            if call.name in self._noted:
                self._note("unknown tool", describe_unknown_tool(call.name, names))

    def _note(self, kind: Unusable, detail: str) -> None:
        """Note a mistake in the last turn."""
        self.trajectory.mistakes.append(Mistake(max(1, self.trajectory.turns), kind, detail))

    # Calls of tools.

    async def call_tool(self, call: Call) -> str:
        """Run a tool of the environment, and return the text of its result, or of the mistake in the call.

        Raises:
            LimitReachedError: if the episode has used up its calls.
            EpisodeFailedError: if the tool did not answer in time, so that the episode will be run again, or if the
                observer refused the call.
            UnknownKeyError: if the episode is over.
        """
        self._check_running()
        self._tool_calls += 1
        if self._tool_calls > self._settings.max_tool_calls:
            raise LimitReachedError(
                "gateway.tool-calls-exceeded", f"the episode may call tools {self._settings.max_tool_calls} times"
            )
        with self.clock.pause():
            await self._tool_lock.acquire()
            # A cancelled request does not stop the tool's thread: the next call, and the end, wait for it all the same.
            self._tool_task = asyncio.create_task(self._call_alone(call))
            return await asyncio.shield(self._tool_task)

    async def _call_alone(self, call: Call) -> str:
        """Run a tool while the lock is held, and release it."""
        started, before = asyncio.get_running_loop().time(), len(self.trajectory.record.deeds)
        try:
            self._check_running()
            if self._start.environment.finished:
                return _ANSWERED
            self._start.observer.begin_calls([call])
            if self._foreign is not None and call.name in self._foreign:
                return await self._run_foreign_tool(call, self._foreign)
            return await self._start.threads.run(call.name, self._run_tool, call)
        except UnavailableError as error:
            self.failure = self.failure or error
            raise EpisodeFailedError("gateway.episode-failed", _FAILED) from None
        except GatewayError:
            raise
        except Exception as error:  # a defect of the tool, not of the agent
            self.failure = self.failure or error
            raise
        finally:
            self.trajectory.tool_seconds += asyncio.get_running_loop().time() - started
            self._count_events(len(self.trajectory.record.deeds) - before)
            self._tool_lock.release()

    async def _run_foreign_tool(self, call: Call, tools: "ForeignTools") -> str:
        found = await tools.call(call, marks=self.toolbox.has_marks)
        self.trajectory.foreign_calls.append(found.record)
        self._start.observer.add_results([call], [found.text])
        return found.text

    def _run_tool(self, call: Call) -> str:
        done = self.trajectory
        try:
            result = self.toolbox.run(call)
        except ToolError as error:
            done.record.tool_errors += 1
            result = f"Error: {error}"
        except UnknownToolError as error:
            if call.name not in self._noted:
                self._note("unknown tool", str(error))
            result = f"Error: {error}"
        except BadArgumentsError as error:
            self._note("bad arguments", str(error))
            result = f"Error: {error}"
        self._start.observer.add_results([call], [result])
        return result

    def _count_events(self, count: int) -> None:
        """Count the events of a call for the turn before it, or for the first one."""
        if self.trajectory.deeds:
            self.trajectory.deeds[-1] += count
        else:
            self._early_events += count

    # The end.

    def close(self) -> None:
        """Make the key void, also for the tools that an agent holds in its own threads."""
        self._is_over = True

    async def end(self, answer: str | None = None, sources: Sequence[str] = ()) -> Trajectory:
        """End the episode with the answer that the agent returned, and return its trajectory.

        The key is void from now on. An answer that was given with a call counts first.

        Raises:
            UnavailableError: if the policy or a tool failed.
            Exception: if a tool raised it, because of a defect in the tool.
        """
        environment, done = self._start.environment, self.trajectory
        self.close()
        async with self._tool_lock:
            if answer is not None and not environment.finished and self.failure is None:
                before = len(done.record.deeds)
                await self._start.threads.run(FINAL_ANSWER, self._run_tool, self._write_final_call(answer, sources))
                self._count_events(len(done.record.deeds) - before)
        if self.failure is not None:
            raise self.failure
        done.ending = "answer" if environment.finished else self._limit or "no answer"
        return done

    def _write_final_call(self, answer: str, sources: Sequence[str]) -> Call:
        """Return the call that gives an answer. Its arguments are the answer and, if the tool takes them, the sources.

        Raises:
            UsageError: if the environment has no such tool.
        """
        schemas = [each["function"] for each in self.toolbox.schemas()]
        names = next((list(each["parameters"]["properties"]) for each in schemas if each["name"] == FINAL_ANSWER), None)
        if not names:
            raise UsageError(
                "gateway.no-final-answer",
                f"the environment has no tool {FINAL_ANSWER} with an argument for the answer, which agents that return "
                "their answer need",
            )
        values = (answer, [*sources])
        return Call(FINAL_ANSWER, dict(zip(names, values, strict=False)))


async def _run_all(coroutines: Sequence[Coroutine[Any, Any, SampledTurn]]) -> list[SampledTurn]:
    """Return the results of coroutines that run at once. If one fails, the others are cancelled."""
    if len(coroutines) == 1:  # nearly always
        return [await coroutines[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in coroutines]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _count_characters(request: ModelRequest) -> int:
    """Return the number of characters of a conversation, with its calls and its tools."""
    calls = [each for message in request.messages for each in message.calls]
    texts = (*(each.text for each in request.messages), *(str(each.arguments) for each in calls))
    return sum(map(len, texts)) + len(str(request.tools))
