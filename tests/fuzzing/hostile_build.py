"""Build an index of a directory of messages with little memory and CPU time: `… MESSAGES INDEX`. Prints the report."""

import json
import resource
import sys
from pathlib import Path

from gumshoe.mail.build import build_mail_index
from gumshoe.mail.build_report import MailBuildOptions

OPTIONS = MailBuildOptions(max_body=None, max_recipients=1000, drop_duplicates=False)
MAX_MEMORY = 3 << 30
"""Bytes of address space of a process, most of which libraries reserve and never use."""
MAX_CPU_SECONDS = 240


def main(messages: str, index: str) -> None:
    """Build the index. The limits also hold for the processes that read attachments, each on its own."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    report = build_mail_index([f"eml:{messages}"], Path(index), OPTIONS)
    print(json.dumps(report.to_dict()))


if __name__ == "__main__":
    main(*sys.argv[1:])
