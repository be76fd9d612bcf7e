"""Open, publish, fetch and verify: files and S3, immutable artifacts with lineage.

What always holds:

- A published artifact never changes. It becomes visible by one conditional write of its manifest, after
  every file has arrived; whoever reads the manifest can read the whole artifact.
- Files lie under the digest of their own content, so two publishers of one version cannot mix theirs.
- Nothing is used before its SHA-256 has been checked.

`open_uri` and `list_uri` are how every other package reads `file://` and `s3://`.
"""
