"""Options of an index of mail by name, as pipelines have them."""

from typing import Any

import pytest

from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.index_options import parse_options
from tests.errors import raises

ANN, BOB = "ann@example.com", "bob@example.com"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, MailBuildOptions()),
        ({"max_body": 0.0, "max_recipients": 0}, MailBuildOptions(max_body=None, max_recipients=None)),
        ({"max_body": None, "max_attachments": 0}, MailBuildOptions(max_body=None, max_attachments=0)),
        ({"skip": ["spam", "deleted"]}, MailBuildOptions(skip=("deleted", "spam"))),
        ({"skip": [], "drop_duplicates": False}, MailBuildOptions(skip=(), drop_duplicates=False)),
        ({"inboxes": ["Bob@example.com", "ann@example.com"]}, MailBuildOptions(inboxes=(ANN, BOB))),
    ],
)
def test_options_have_the_defaults_of_the_command(given: dict[str, Any], expected: MailBuildOptions) -> None:
    assert parse_options(given) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_bdy", 1),
        ("max_body", -1),
        ("max_body", "5000"),
        ("max_body", True),
        ("max_recipients", 1.5),
        ("max_attachments", None),
        ("skip", "deleted"),
        ("skip", ["old"]),
        ("skip", [""]),
        ("inboxes", ["ann"]),
        ("drop_duplicates", 0),
    ],
)
def test_unknown_options_and_wrong_values_are_refused(name: str, value: object) -> None:
    with raises("mail.invalid-index-options", name):
        parse_options({name: value})
