"""Open, publish, fetch and verify artifacts in directories and on S3, with their lineage.

Guarantees:

- A published artifact never changes. All of its files are uploaded first; then one conditional write of its manifest
  makes it visible. Whoever can read the manifest can read the whole artifact.
- Files are stored under the digest of their content, so two publishers of one version cannot mix their files.
- Nothing is used before its SHA-256 has been checked.

All other packages read `file://` and `s3://` with `open_uri` and `list_uri`.
"""
