"""The environment that `gumshoe plan` suggests for a model's context."""

import pytest

from gumshoe.environments.mail_results import MailFormat
from gumshoe.environments.registry import EnvironmentSettings, validate_environment
from gumshoe.mail.message import Attachment
from gumshoe.mail.search_results import Message
from gumshoe.training.planning.context_budget import ContextBudget, budgets_for, plan_context, read_budget
from tests.errors import raises

EMAIL = ContextBudget("email")
CONTEXTS = [2048, 4096, 6144, 8192, 12288, 16384, 32768]


@pytest.mark.parametrize(
    ("context", "turns", "hits", "handles"),
    [(32768, 10, 10, False), (16384, 10, 10, False), (8192, 10, 6, True), (4096, 7, 4, True), (2048, 4, 3, True)],
)
def test_a_smaller_context_has_smaller_results(context: int, turns: int, hits: int, handles: bool) -> None:
    found = budgets_for(context, turns, EMAIL)
    assert (found.hits, found.handles) == (hits, handles)
    assert found.estimate_tokens(turns) <= context


@pytest.mark.parametrize(
    ("environment", "context", "item", "tokens"),
    [
        ("email", 32768, None, 31_600),
        ("documents", 32768, None, 25_400),
        ("{email: {attachments: false}}", 16384, None, 15_100),
        *((name, 16384, 4_500, 15_100) for name in ("email", "documents")),
        ("email", 12288, 3_000, 10_700),
        ("email", 8192, 2_000, 7_700),
    ],
)
def test_long_episodes_have_the_tokens_of_the_guide(
    environment: str, context: int, item: int | None, tokens: int
) -> None:
    named = EnvironmentSettings.parse(environment)
    plan = plan_context(named, 10, context, None)
    assert plan is not None
    assert plan.fits == (item is None)
    shown = read_budget(plan.suggested or named)
    assert shown is not None
    assert round(shown.estimate_tokens(10), -2) == tokens
    if plan.suggested is not None:
        assert shown.item_characters == item


def test_an_episode_with_one_reading_has_room_for_the_attachments_that_are_shown() -> None:
    attached = (Attachment("plan.pdf", "x" * 100_000),)
    message = Message("<1@example.com>", None, "ann@example.com", "Ann", (), "Plan", "b" * 4_500, attached)
    shown, counted = list[int](), list[int]()
    for each in (False, True):
        shown.append(len(MailFormat(True, None, None, str, each).format_text(message)))
        counted.append(ContextBudget("email", attachments=each).estimate_tokens(3))
    assert counted[1] - counted[0] == pytest.approx((shown[1] - shown[0]) / 2.9, rel=0.02)


@pytest.mark.parametrize("environment", ["email", "documents"])
def test_results_grow_with_the_context_and_are_valid_settings(environment: str) -> None:
    found = [budgets_for(each, 10, ContextBudget(environment)) for each in CONTEXTS]
    assert [each.hits for each in found] == sorted(each.hits for each in found)
    for budget in found:
        settings = budget.to_settings()
        assert settings is None or read_budget(EnvironmentSettings.parse(settings.word)) == budget
        if settings is not None:
            validate_environment(settings)


def test_the_number_of_turns_that_fit_is_found_if_no_budget_is_enough() -> None:
    plan = plan_context(None, 10, 8192, 2048)
    assert plan is not None
    assert (plan.context, plan.fits, plan.suggested_turns) == (2048, False, 4)
    smallest = read_budget(plan.suggested)
    assert smallest is not None
    assert smallest.estimate_tokens(4) <= 2048 < smallest.estimate_tokens(5)


def test_other_settings_of_the_user_are_kept_and_none_becomes_larger() -> None:
    named = EnvironmentSettings.parse("{email: {threads: false, hits: 5, hit_characters: 100}}")
    plan = plan_context(named, 10, 7000, None)
    assert plan is not None
    assert plan.suggested is not None
    assert plan.suggested.arguments == {
        "threads": False,
        "hits": 5,
        "hit_characters": 100,
        "message_characters": 2000,
        "handles": True,
    }


def test_what_fits_and_custom_environments_get_no_suggestion() -> None:
    plan = plan_context(EnvironmentSettings.parse("{email: {hits: 4, message_characters: 1200}}"), 10, 8192, None)
    assert plan is not None
    assert (plan.fits, plan.suggested) == (True, None)
    assert plan_context(EnvironmentSettings.parse("wiki:WikiEnvironment"), 10, 512, None) is None
    with raises("environments.invalid-settings", "hits"):
        plan_context(EnvironmentSettings.parse("{email: {hits: 11}}"), 10, 512, None)
