"""Choose how much the tools of an environment show, so that an episode fits into a model's context.

Numbers of tokens are those of 200 questions about mail of Enron with the tokenizer of SmolLM2: nine of ten results are
not longer. Attachments, which this mail does not have, count with as many characters as are shown at most. Reasoning is
not counted.
"""

from dataclasses import asdict, dataclass, replace

from gumshoe.environments.mail_results import MAX_ATTACHED
from gumshoe.environments.registry import EnvironmentSettings, validate_environment

_CHARACTERS_PER_TOKEN = 2.9
_PROMPT = 700  # tokens of the system prompt, the schemas of the tools and the question
_CALL = 80  # tokens of a call, with the template around it and its result
_HIT = 25  # tokens of a hit without its text and its ids
_TEXT_OF_HIT = 200  # characters of subject and snippet, if they are not cut
_IDS, _HANDLES = 45, 8  # tokens of the ids of a hit: its own, and often that of its thread
_HEADER = 100  # tokens of the header of a message
_ITEMS = {"email": "message_characters", "documents": "document_characters"}
_BUDGETS = (
    (10, None, 4_500, False),
    (8, 240, 3_000, True),
    (6, 200, 2_000, True),
    (4, 160, 1_200, True),
    (3, 120, 600, True),
)
"""Hits, characters of a hit, characters of an item, and if there are handles, the largest first."""
_LONG_ITEMS = {"email": 4_500, "documents": 12_000}
"""Characters that are shown of a long item without attachments, if it has no pages."""


@dataclass(frozen=True, slots=True)
class ContextBudget:
    """Limits of the results of a built-in environment's tools: its settings."""

    environment: str
    """`email` or `documents`."""
    hits: int = 10
    hit_characters: int | None = None
    item_characters: int | None = None
    """`message_characters` or `document_characters`."""
    handles: bool = False
    attachments: bool = True
    """Only for `email`."""

    def to_settings(self) -> EnvironmentSettings | None:
        """Return the environment with those settings that are not the defaults, or None if all are."""
        default, names = asdict(ContextBudget(self.environment)), {"item_characters": _ITEMS[self.environment]}
        changed = {names.get(name, name): value for name, value in asdict(self).items() if value != default[name]}
        return EnvironmentSettings(name=self.environment, arguments=changed) if changed else None

    def limit_to(self, other: "ContextBudget") -> "ContextBudget":
        """Return the budget with no more than another one shows."""
        cut = [each for each in (self.hit_characters, other.hit_characters) if each]
        pages = [each for each in (self.item_characters, other.item_characters) if each]
        return replace(
            self,
            hits=min(self.hits, other.hits),
            hit_characters=min(cut, default=None),
            item_characters=min(pages, default=None),
            handles=self.handles or other.handles,
        )

    def estimate_tokens(self, max_turns: int) -> int:
        """Estimate the tokens of a long episode: it searches, reads a long item, and so on, and answers."""
        searches, reads = max_turns // 2, max(0, (max_turns - 1) // 2)
        longest = _LONG_ITEMS[self.environment]
        text = min(self.hit_characters or _TEXT_OF_HIT, longest) / _CHARACTERS_PER_TOKEN
        hit = _HIT + text + (_HANDLES if self.handles else _IDS)
        if self.environment == "email" and self.attachments:
            longest += MAX_ATTACHED
        read = _HEADER + min(self.item_characters or longest, longest) / _CHARACTERS_PER_TOKEN
        return round(_PROMPT + max_turns * _CALL + searches * self.hits * hit + reads * read)

    def max_turns(self, context: int) -> int:
        """Return the number of turns of a long episode that fits into a context, at least 1."""
        turns = 1
        while self.estimate_tokens(turns + 1) <= context:
            turns += 1
        return turns


def read_budget(named: EnvironmentSettings | None) -> ContextBudget | None:
    """Return the budget of an environment, by default `email`; None for a custom one, whose results are not known.

    Raises:
        UsageError: if a setting of the environment does not exist, or is invalid.
    """
    environment = named or EnvironmentSettings(name="email")
    if environment.name not in _ITEMS:
        return None
    found = validate_environment(environment)
    pages = found[_ITEMS[environment.name]] or found.get("longest")
    attachments = found.get("attachments", True)
    return ContextBudget(environment.name, found["hits"], found["hit_characters"], pages, found["handles"], attachments)


def budgets_for(context: int, max_turns: int, present: ContextBudget) -> ContextBudget:
    """Return the largest budget with which a long episode of `max_turns` turns fits into a context, in tokens.

    It shows no more than the present one, e.g. `ContextBudget("email")`. If none fits, it is the smallest one, and its
    method `max_turns` tells how many turns fit. With 10 turns:

    | context | hits | characters of a hit | characters of a message | handles | tokens of a long episode |
    |---|---|---|---|---|---|
    | 32k and more | 10 | not cut | not cut | no | 31,600 (documents: 25,400) |
    | 16k | 10 | not cut | 4,500 | no | 15,100 |
    | 12k | 8 | 240 | 3,000 | yes | 10,700 |
    | 8k | 6 | 200 | 2,000 | yes | 7,700 |
    | 6k; 4k with 7 turns | 4 | 160 | 1,200 | yes | 5,300; 3,900 |
    | 4k; 2k with 4 turns | 3 | 120 | 600 | yes | 3,800; 1,800 |

    Handles save tokens with every context if ids are long, such as the Message-IDs of mail (30 tokens).
    """
    budgets = [
        present,
        *(present.limit_to(ContextBudget(present.environment, *each)) for each in _BUDGETS),
    ]
    return next((each for each in budgets if each.estimate_tokens(max_turns) <= context), budgets[-1])


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """The estimate for the episodes of a run, and the settings to use if they may not fit."""

    context: int
    """Tokens of an episode, by the settings and the model."""
    turns: int
    tokens: int
    """Tokens of a long episode with the present settings."""
    suggested: EnvironmentSettings | None = None
    """Environment with smaller results; None if the present one fits."""
    suggested_turns: int | None = None
    """Number of turns that fit with it; None if all fit."""

    @property
    def fits(self) -> bool:
        return self.tokens <= self.context


def plan_context(
    named: EnvironmentSettings | None, max_turns: int, max_context: int, longest: int | None
) -> ContextPlan | None:
    """Check if a long episode fits into the context, and suggest an environment if it does not.

    `longest` is the maximum context of the model, if known. Other settings of the environment are kept. The result is
    None for a custom environment.

    Raises:
        UsageError: if a setting of the environment does not exist, or is invalid.
    """
    present = read_budget(named)
    if present is None:
        return None
    context = min(max_context, longest or max_context)
    tokens = present.estimate_tokens(max_turns)
    if tokens <= context:
        return ContextPlan(context, max_turns, tokens)
    found = budgets_for(context, max_turns, present)
    turns = found.max_turns(context)
    settings = found.to_settings()
    if settings is not None and named is not None:
        settings = settings.model_copy(update={"arguments": {**named.arguments, **settings.arguments}})
    return ContextPlan(context, max_turns, tokens, settings, turns if turns < max_turns else None)
