"""Read mail from its sources, index it, search it, and read single messages and threads.

Guarantees:

- `MailIndex.search`, `search_by_meaning`, `read` and `read_thread` see only messages that the inbox holds. A search
  reads only the postings of that inbox, and the vectors of its messages. Its results do not depend on the
  content of other inboxes.
- A message is data: its text cannot reach the query, the index's own terms or the terminal.
- A build writes complete segments and makes them visible with one last write. A segment never changes.
"""
