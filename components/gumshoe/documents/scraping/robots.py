"""Read robots.txt (RFC 9309)."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from protego import Protego

_AGENT = re.compile(r"\s*user[-\s]*agent(?:\s*:|\s|$)", re.I)  # a line of robots.txt
_OTHER_AGENT = "\0"  # never part of our own name


def parse_robots(body: bytes, agent: str) -> "Protego":
    """Return the rules of a robots.txt for the user agent of this program."""
    from protego import Protego

    return Protego.parse(_keep_own_rules(body.decode("utf-8", "replace"), agent))


def _keep_own_rules(robots: str, agent: str) -> str:
    """Replace all agents in a robots.txt that do not match ours, because Protego stores every rule for every agent.

    A file may have room for millions of such pairs. The agent that matches best is kept, or `*`.
    """
    lines = robots.splitlines()
    named = {
        place: line[found.end() :].partition("#")[0].strip().lower()
        for place, line in enumerate(lines)
        if (found := _AGENT.match(line))
    }
    names = {name if name == "*" else name.replace("*", "") for name in named.values()}
    matching = [name for name in sorted(names - {""}) if re.search(rf"(?<![\w-]){re.escape(name)}", agent.lower())]
    best = max(matching, key=len, default="*")
    for place, name in named.items():
        is_best = best in {name, name.replace("*", "")}
        lines[place] = f"User-agent: {best if is_best else _OTHER_AGENT}"
    return "\n".join(lines)
