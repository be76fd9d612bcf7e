"""Ask a question with the Python client. Print each step as it is taken, then the answer and its sources.

python examples/ask.py "When is the invoice due?" ann@example.com
"""

import os
import sys

from gumshoe.client import AgentAnswer, AgentClient
from gumshoe.errors import GumshoeError


def main() -> None:
    """Ask the question in the first argument, about the inbox in the second (leave it out for documents)."""
    if len(sys.argv) < 2:
        sys.exit("usage: python examples/ask.py QUESTION [INBOX]")
    question, inbox = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    url, key = os.environ.get("GUMSHOE_URL", "http://127.0.0.1:8000"), os.environ.get("GUMSHOE_KEY")
    with AgentClient(url, key) as client:
        for event in client.ask_stream(question, inbox=inbox):
            if isinstance(event, AgentAnswer):
                print(event.answer if event.success else f"No answer: {event.reason}")
                for source in event.sources:
                    print(f"  {source.label}")
            elif event.result is None:
                print(f"{event.turn}. {event.tool} {event.arguments}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except GumshoeError as error:
        sys.exit(error.message_with_code)
