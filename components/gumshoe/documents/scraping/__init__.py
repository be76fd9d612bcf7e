"""Web pages as documents: fetched politely, within bounds, and only from where one may connect to."""
