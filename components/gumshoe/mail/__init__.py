"""Read mail from its sources, index it, search it, read one message.

What always holds:

- `MailIndex.search` and `MailIndex.read` see only messages that the inbox sent or received, and the restriction
  is part of the query itself. What an inbox is shown does not depend on what lies in any other, except that a
  dropped duplicate lends its kept message's id and date, and that a used id is told apart by a suffix.
- A message is data: nothing in its text can reach the query, the index's own terms or the terminal.
- An index is built beside its final name and moved into place when whole; then it never changes.
"""
