"""Conversations of agents in token ids: what continues, what begins a segment, and what counts as sampled."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gumshoe.environments.tools import Call
from gumshoe.gateway.conversation_tree import ConversationTree
from gumshoe.gateway.gateway_errors import InvalidRequestError
from gumshoe.gateway.messages import AgentMessage, SampledMessage
from gumshoe.rollouts.chat_format.chat_format import ChatFormat
from gumshoe.rollouts.trajectory import Segment, Span, TokenUsage
from gumshoe.rollouts.turn_sampler import SampledTurn
from tests.rollouts.conversations import call

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
        },
    }
]
OPENING = (AgentMessage("system", "You look things up."), AgentMessage("user", "What is gas?"))


class Episode:
    """A tree with the spans and segments that a trajectory would have."""

    def __init__(self, chat: ChatFormat) -> None:
        self.chat, self.tree = chat, ConversationTree(chat)
        self.spans: list[Span] = []
        self.segments: list[Segment] = []

    def turn(
        self, messages: Sequence[AgentMessage], said: str, tools: Sequence[dict[str, Any]] = TOOLS
    ) -> AgentMessage:
        """Sample a turn after messages, and return it as the agent receives it."""
        conversation = self.tree.compose(messages, tools)
        ids = self.chat.encode_turn(said).ids
        parsed = self.chat.parse_turn(said, tools)
        span = Span("sampled", said, ids, (0.0,) * len(ids), parsed.calls)
        turn = SampledTurn((span,), parsed, "policy", TokenUsage(), is_full=False, is_cut_off=False)
        calls = tuple(
            Call(each.name, each.arguments, f"call_{len(self.spans)}_{at}") for at, each in enumerate(parsed.calls)
        )
        given = SampledMessage(parsed.text, calls, parsed.reasoning, "tool_calls" if calls else "stop")
        spans, segment = self.tree.add(conversation, turn, given)
        self.spans += spans
        self.segments += [segment] if segment else []
        return AgentMessage("assistant", given.text, given.calls)

    @property
    def sampled(self) -> int:
        return sum(len(each.ids) for each in self.spans if each.origin == "sampled")


@pytest.fixture
def episode(chat: ChatFormat) -> Episode:
    return Episode(chat)


def result(turn: AgentMessage, text: str = "Gas costs 42.", number: int = 0) -> AgentMessage:
    return AgentMessage("tool", text, call_id=turn.calls[number].id)


def test_a_conversation_that_goes_on_is_one_segment_with_glue_alone(episode: Episode) -> None:
    first = episode.turn(OPENING, call("look", word="gas"))
    second = episode.turn([*OPENING, first, result(first)], call("look", word="oil"))
    episode.turn([*OPENING, first, result(first), second, result(second, "nothing")], "It costs 42.")
    assert episode.segments == []
    assert [each.origin for each in episode.spans] == [
        "prompt",
        "sampled",
        "injected",
        "sampled",
        "injected",
        "sampled",
    ]
    glue = episode.chat.encode_results([Call("look", {})], ["Gas costs 42."], episode.chat.stop_ids[0])
    assert episode.spans[2].ids == glue.ids


def test_the_usual_opening_has_the_ids_of_our_own_loop(episode: Episode) -> None:
    episode.turn(OPENING, call("look", word="gas"))
    own = episode.chat.encode_prompt(OPENING[0].text, OPENING[1].text, TOOLS)
    assert episode.spans[0].ids == own.ids


def test_what_agents_change_without_meaning_keeps_the_sampled_ids(episode: Episode) -> None:
    said = f"I look.\n{call('look', word='gas')}"
    first = episode.turn(OPENING, said)
    made = first.calls[0]
    again = AgentMessage("assistant", f" {first.text}\n", (Call(made.name, json.loads('{"word":  "gas"}'), "renamed"),))
    episode.turn([*OPENING, again, AgentMessage("tool", "x", call_id="renamed")], "Done.")
    assert episode.segments == []
    assert episode.spans[1].text.startswith(said)


def test_an_edited_turn_is_context_and_no_longer_sampled(episode: Episode) -> None:
    first = episode.turn(OPENING, call("look", word="gas"))
    episode.turn([*OPENING, first, result(first)], "It costs 42.")
    before = episode.sampled
    forged = AgentMessage("assistant", "", (Call("look", {"word": "silver"}, first.calls[0].id),))
    episode.turn([*OPENING, forged, result(first)], "It costs 43.")
    (segment,) = episode.segments
    assert (segment.parent, segment.reason) == (0, "history edited")
    assert segment.shared >= len(episode.spans[0].ids), "the prompt is shared"
    assert "silver" in episode.chat.decode(segment.context)
    assert episode.sampled == before + len(episode.spans[-1].ids)


def test_a_dropped_turn_keeps_the_ids_of_the_others(episode: Episode) -> None:
    first = episode.turn(OPENING, call("look", word="gas"))
    second = episode.turn([*OPENING, first, result(first)], call("look", word="oil"))
    episode.turn([*OPENING, second, result(second)], "Done.")
    (segment,) = episode.segments
    assert segment.reason == "history edited"
    whole = episode.tree.compose([*OPENING, second, result(second)], TOOLS).ids
    sampled = episode.spans[3].ids
    places = [at for at in range(len(whole)) if whole[at : at + len(sampled)] == sampled]
    assert places == [len(episode.spans[0].ids)]


@pytest.mark.parametrize(
    ("opening", "tools"),
    [
        ((AgentMessage("system", "You summarize."), AgentMessage("user", "What is gas?")), TOOLS),
        (
            (
                AgentMessage("system", "You look things up."),
                AgentMessage("user", "Summarize: gas costs 42."),
            ),
            TOOLS,
        ),
        (OPENING, []),
    ],
    ids=["system", "question", "tools"],
)
def test_another_opening_begins_a_segment(
    episode: Episode, opening: tuple[AgentMessage, ...], tools: list[dict[str, Any]]
) -> None:
    first = episode.turn(OPENING, call("look", word="gas"))
    episode.turn(opening, "Gas costs 42.", tools)
    (segment,) = episode.segments
    assert (segment.parent, segment.reason) == (0, "other opening")
    assert segment.shared < len(episode.spans[0].ids)
    episode.turn([*OPENING, first, result(first)], "Done.")
    assert [each.segment for each in episode.spans] == [0, 0, 1, 0, 0], "the first one goes on"


def test_several_turns_after_the_same_messages_share_all_of_them(episode: Episode) -> None:
    turns = [episode.turn(OPENING, call("look", word=word)) for word in ("gas", "oil", "gas")]
    prompt = len(episode.spans[0].ids)
    assert [(each.parent, each.shared, each.context, each.reason) for each in episode.segments] == [
        (0, prompt, (), "sampled again"),
        (0, prompt, (), "sampled again"),
    ]
    episode.turn([*OPENING, turns[1], result(turns[1])], "Done.")
    assert [each.segment for each in episode.spans] == [0, 0, 1, 2, 1, 1]


def test_sequences_are_what_the_policy_saw(episode: Episode, chat: ChatFormat) -> None:
    first = episode.turn(OPENING, call("look", word="gas"))
    seen = [episode.tree.compose(OPENING, TOOLS).ids]
    for messages in ([*OPENING, first, result(first)], [*OPENING, first, result(first, "other")]):
        seen.append(episode.tree.compose(messages, TOOLS).ids)
        episode.turn(messages, "Done.")
    (segment,) = episode.segments
    path = [token for span in episode.spans if span.segment == 0 for token in span.ids]
    assert (*path[: segment.shared], *segment.context) == seen[-1]
    assert chat.decode(path).count("Done.") == 1


@pytest.mark.parametrize(
    "following",
    [
        [],
        [AgentMessage("tool", "x", call_id="unknown")],
        [AgentMessage("tool", "x", call_id="1"), AgentMessage("tool", "y", call_id="1")],
        [AgentMessage("user", "go on")],
    ],
)
def test_a_call_without_its_result_is_refused(episode: Episode, following: list[AgentMessage]) -> None:
    turn = AgentMessage("assistant", "", (Call("look", {"word": "gas"}, "1"),))
    with pytest.raises(InvalidRequestError) as caught:
        episode.tree.compose([*OPENING, turn, *following], TOOLS)
    assert caught.value.code == "gateway.results-mismatch"
