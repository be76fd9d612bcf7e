"""Write the table of values in a chart's README from the comments in its values.yaml: `charts/readme.py charts/agent`.

A comment `# -- text` describes the value below it. `--check` only checks that the README is up to date.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_BEGIN, _END = "<!-- values -->\n", "<!-- end of values -->"


def read_descriptions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the path (`a.b.c`) and the description of each documented value."""
    description, path = "", list[tuple[int, str]]()
    for line in text.splitlines():
        if comment := re.match(r"\s*# -- (.*)", line):
            description = comment[1]
        elif key := re.match(r"( *)([\w-]+):", line):
            path = [each for each in path if each[0] < len(key[1])] + [(len(key[1]), key[2])]
            if description:
                yield ".".join(name for _, name in path), description
            description = ""


def format_table(values: str) -> str:
    """Return the table of values in Markdown."""
    tree = yaml.safe_load(values)
    lines = ["| value | default | |", "|---|---|---|"]
    for name, description in read_descriptions(values):
        found: Any = tree
        for part in name.split("."):
            found = found[part]
        shown = yaml.safe_dump(found, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()
        lines.append(f"| `{name}` | `{shown}` | {description} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the README, or check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chart", type=Path)
    parser.add_argument("--check", action="store_true", help="only check, and exit with 1 if the README is outdated")
    options = parser.parse_args()
    readme = options.chart / "README.md"
    before = readme.read_text()
    head, _, rest = before.partition(_BEGIN)
    after = head + _BEGIN + format_table((options.chart / "values.yaml").read_text()) + _END + rest.partition(_END)[2]
    if options.check:
        sys.exit(0 if after == before else f"{readme} is outdated; run python charts/readme.py {options.chart}")
    readme.write_text(after)


if __name__ == "__main__":
    main()
