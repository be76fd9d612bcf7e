"""Read mail from its sources, index it, search it, and read single messages.

Guarantees:

- `MailIndex.search` and `MailIndex.read` see only messages that the inbox sent or received. The restriction is part
  of the query itself. The results for one inbox do not depend on the content of other inboxes, with two exceptions: a
  dropped duplicate is found as the kept message, with that message's id and date, and a message with a used id gets a
  suffix.
- A message is data: its text cannot reach the query, the index's own terms or the terminal.
- An index is built beside its final name and renamed when complete. Then it never changes.
"""
