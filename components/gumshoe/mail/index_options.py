"""Parse the options of an index of mail, as pipelines have them: by name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from gumshoe.errors import UsageError
from gumshoe.mail.build_report import MailBuildOptions
from gumshoe.mail.inboxes import is_address, normalize_servers
from gumshoe.mail.message import State, normalize_address
from gumshoe.model_validation import validate_options


def parse_options(options: Mapping[str, Any]) -> MailBuildOptions:
    """Return the options of an index. A `max_body` or `max_recipients` of 0 means no limit.

    Inboxes and states get a fixed order, since equal options give an index the same content digest.

    Raises:
        UsageError: if an option does not exist, or a value is invalid.
    """
    code, what = "mail.invalid-index-options", "invalid options of the index"
    found = validate_options(MailBuildOptions, options, code, what)
    inboxes = sorted({*map(normalize_address, found.inboxes)})
    if wrong := [each for each in inboxes if not is_address(each)]:
        raise UsageError(code, f"{what}: inboxes must be whole addresses, such as ann@example.com, got {wrong[0]!r}")
    if "" in found.skip:
        raise UsageError(code, f"{what}: skip must consist of deleted, trash and spam, got {list(found.skip)}")
    return replace(
        found,
        max_body=found.max_body or None,
        max_recipients=found.max_recipients or None,
        skip=tuple(each for each in get_args(State) if each in found.skip),
        inboxes=tuple(inboxes),
        trust_authserv=normalize_servers(found.trust_authserv),
    )
