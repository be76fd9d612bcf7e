"""Load documents, cut them into chunks, index them by meaning and by words, search them and read them.

What always holds:

- An index appears when it is whole, and then never changes; one that is damaged is refused when it is opened.
- The same documents and options give the same content hash, and the same search gives the same results.
- A document is data: nothing in its text or in a query can reach SQL, the index's own files or the terminal.
- Nothing of an index is unpickled: it is SQLite, JSON, and plain arrays of numbers whose form `index.json` says.
"""
