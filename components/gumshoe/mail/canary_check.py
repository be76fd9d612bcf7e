"""Find planted messages in any inbox of an index, so that the server refuses to serve it."""

from pathlib import Path

from gumshoe.artifacts.sqlite import explain_damage
from gumshoe.mail.schema import check_exists
from gumshoe.mail.segment import IndexSegments

CANARY_ID_PREFIX = "<canary."
"""Start of the id of each message with a canary, an invented secret that is planted for training only."""


def has_canaries(index: Path) -> bool:
    """Return True if an inbox of an index holds a message with a canary.

    Raises:
        UsageError: if there is no index.
        GumshoeError: if it is damaged, or another version of Gumshoe built it.
    """
    check_exists(index)
    with explain_damage(index, content=True):
        _, segments = IndexSegments.open_present(index)
        found = segments.find_id_prefix(CANARY_ID_PREFIX)
        return any(copy.inboxes for number in found for copy in segments.read_copies(number))
