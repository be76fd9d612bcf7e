"""Load documents, split them into chunks, index them for dense and lexical search, and read them.

Guarantees:

- An index appears when it is complete, and then never changes. A damaged index is rejected when it is opened.
- The same documents and options give the same content hash, and the same search gives the same results.
- A document is data: neither its text nor a query can reach SQL, the index's own files or the terminal.
- Nothing in an index is unpickled: it consists of SQLite, JSON, and plain arrays whose form is in `index.json`.
"""
