"""Check what a run needs outside the cluster: the store and Kubeflow Pipelines."""

import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from gumshoe.artifacts.storage import Limits, Storage, StorageError, open_storage, split_uri
from gumshoe.cluster.kubeflow_access import IN_CLUSTER_URL, find_pod_token
from gumshoe.cluster.preflight.client import ClusterReader
from gumshoe.cluster.preflight.result import Finding, State, from_error, ok, problem, skipped, warning
from gumshoe.errors import UnavailableError
from gumshoe.network import explain_untrusted

if TYPE_CHECKING:
    from gumshoe.artifacts.s3 import Retention, S3Storage

_PROBE = b"gumshoe doctor wrote this, and removes it.\n"
_KEY = ".gumshoe-doctor-"  # prefix of all test objects
_SKEW = timedelta(minutes=1)  # S3 rejects requests from 15 minutes on
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_NOTHING = re.compile("(?!)")


def check_store(uri: str, seconds: float) -> Iterator[Finding]:
    """Check that the credentials have the permissions that a run needs, by using them on a test object.

    `seconds` is the timeout of a request. The object is removed again; it is not written if it could not be removed.
    """
    scheme, bucket, path = split_uri(uri)
    if scheme == "file":
        yield from _check_directory(Path(path))
        return
    from gumshoe.artifacts.s3 import AccessDeniedError, NoSuchBucketError, S3Storage

    storage = S3Storage(bucket, path, Limits(connect_timeout=seconds, read_timeout=seconds, attempts=2, backoff=1))
    rights = _S3Permissions(bucket, path)
    try:
        list(storage.entries(_KEY))
        yield ok(f"{storage.uri} can be listed")
    except AccessDeniedError:
        yield rights.report_missing("listed", "s3:ListBucket")
    except NoSuchBucketError as error:
        endpoint = f" --endpoint-url {address}" if (address := os.environ.get("AWS_ENDPOINT_URL")) else ""
        make = f"aws s3 mb s3://{bucket}{endpoint}"
        yield from_error(State.PROBLEM, error, "create the bucket, or correct its name", make)
        return
    except StorageError as error:
        yield from_error(State.PROBLEM, error, "fix the problem and check again")
        return
    retention: Retention | None = None
    try:
        retention = storage.retention()
        yield from _check_retention(retention, rights)
    except AccessDeniedError:
        yield warning(
            f"cannot check if s3://{bucket} keeps old versions of deleted objects",
            f"allow s3:GetBucketVersioning, s3:GetLifecycleConfiguration and s3:GetBucketObjectLockConfiguration on "
            f"{rights.bucket_arn}",
        )
    try:
        storage.abandon_uploads(_KEY, _LONG_AGO, _NOTHING)
    except AccessDeniedError:
        yield warning(
            "`gumshoe artifacts prune` lacks the permission to find unfinished uploads, which cost money",
            f"allow s3:ListBucketMultipartUploads on {rights.bucket_arn}, and s3:AbortMultipartUpload on "
            f"{rights.objects_arn}",
        )
    if retention is None or not retention.locked_for:
        yield from _check_objects(storage, rights, is_versioned=bool(retention and retention.is_versioned))


class _S3Permissions:
    """Name the permissions that a store needs, for S3 policies."""

    def __init__(self, bucket: str, path: str) -> None:
        self.bucket, self.path = bucket, path
        self.bucket_arn = f"arn:aws:s3:::{bucket}"
        self.objects_arn = f"arn:aws:s3:::{f'{bucket}/{path}'.rstrip('/')}/*"

    def report_missing(self, done: str, right: str) -> Finding:
        arn = self.bucket_arn if right == "s3:ListBucket" else self.objects_arn
        where = f"s3://{self.bucket}/{self.path}".rstrip("/")
        return problem(
            f"{where} cannot be {done} (access denied: {right} is missing)", f"allow {right} on {arn} to these keys"
        )


def _random_key() -> str:
    """Return a key that no other process uses."""
    return _KEY + uuid.uuid4().hex


def _check_retention(retention: "Retention", rights: _S3Permissions) -> Iterator[Finding]:
    """Check if a setting of the bucket keeps `prune` from freeing space."""
    if retention.locked_for:
        yield warning(
            f"an object lock keeps every object in s3://{rights.bucket} for {retention.locked_for}: pruning frees no "
            "space until then; writing was not tested, because the test object would stay",
            "use a bucket without object lock, unless it is intended",
            f"aws s3api get-object-lock-configuration --bucket {rights.bucket}",
        )
    elif retention.is_versioned and not retention.expires:
        rule = (
            '{"Rules":[{"ID":"gumshoe","Status":"Enabled","Filter":{"Prefix":"%s"},'
            '"NoncurrentVersionExpiration":{"NoncurrentDays":7}}]}' % (f"{rights.path}/" if rights.path else "")
        )
        yield warning(
            f"s3://{rights.bucket} keeps old versions forever, so `gumshoe artifacts prune` frees no space",
            "let old versions expire; the command replaces all lifecycle rules, so add the existing ones",
            f"aws s3api put-bucket-lifecycle-configuration --bucket {rights.bucket} --lifecycle-configuration '{rule}'",
        )


def _check_objects(storage: "S3Storage", rights: _S3Permissions, *, is_versioned: bool) -> Iterator[Finding]:
    """Delete a missing object, then write, read, overwrite and delete it."""
    from gumshoe.artifacts.s3 import AccessDeniedError

    key = _random_key()
    try:
        storage.delete([key])
    except AccessDeniedError:
        yield rights.report_missing("deleted from", "s3:DeleteObject")
        yield skipped("writing and reading were not tested, because the test object could not be removed")
        return
    except StorageError as error:
        yield from_error(State.PROBLEM, error, "fix the problem and check again")
        return
    yield from _check_writes(storage, key, rights)
    try:
        storage.delete([key])
        if is_versioned:
            storage.delete_versions(key)
    except (StorageError, UnavailableError) as error:
        yield warning(
            f"the test object {storage.uri}/{key} ({len(_PROBE)} bytes), or an old version of it, was not removed "
            f"({error.message_with_code})",
            f"remove it; for old versions allow s3:ListBucketVersions on {rights.bucket_arn} and "
            f"s3:DeleteObjectVersion on {rights.objects_arn}",
            f"aws s3 rm {storage.uri}/{key}",
        )
        return
    yield ok("objects can be deleted")


def _check_writes(storage: Storage, key: str, rights: _S3Permissions) -> Iterator[Finding]:
    """Write, read and overwrite an object. Raises nothing, because the caller must still remove the object."""
    from gumshoe.artifacts.s3 import AccessDeniedError

    done, right = "written to", "s3:PutObject"
    try:
        storage.create(key, _PROBE)
        yield ok("objects can be written")
        done, right = "read", "s3:GetObject"
        data, tag = storage.read(key)
        if data == _PROBE:
            yield ok("objects can be read")
        else:
            yield problem("an object was read back with other content", "check proxies and gateways on the way to S3")
        done, right = "written to again", "s3:PutObject"
        yield from _check_conditional_writes(storage, key, tag)
    except AccessDeniedError:
        yield rights.report_missing(done, right)
    except StorageError as error:
        found = from_error(State.PROBLEM, error, "fix the problem and check again")
        yield replace(found, text=f"{storage.uri} cannot be {done}: {error.message}")
    except UnavailableError as error:
        yield from_error(State.UNANSWERED, error)
    yield from _check_clock(storage, key)


def _check_conditional_writes(storage: Storage, key: str, tag: str) -> Iterator[Finding]:
    """Check that conditional writes are rejected if their condition is not met."""
    remedy = "use a store with conditional writes (AWS S3, MinIO since 2024-11, Ceph since Squid)"
    if storage.create(key, _PROBE):
        yield problem("the store ignores If-None-Match: a published version could be overwritten", remedy)
    elif storage.swap(key, _PROBE, '"0123456789abcdef0123456789abcdef"'):
        yield problem("the store ignores If-Match: `latest` could go back to an older version", remedy)
    elif not storage.swap(key, _PROBE, tag):
        yield problem("the store rejects If-Match with its own ETag", remedy)
    else:
        yield ok("conditional writes work")


def _check_clock(storage: Storage, key: str) -> Iterator[Finding]:
    """Check that the clocks of this machine and the store agree."""
    try:
        found = next(storage.entries(key), None)
    except (StorageError, UnavailableError):
        return  # reported before
    if found is None:
        return
    ahead = datetime.now(UTC) - found.modified
    if abs(ahead) > _SKEW:
        how = f"{abs(ahead).total_seconds() / 60:.0f} minutes {'ahead of' if ahead > timedelta() else 'behind'}"
        yield warning(
            f"this machine's clock is {how} the store's clock; from 15 minutes on, S3 rejects every request",
            "synchronize it with NTP",
            "timedatectl set-ntp true",
        )


def _check_directory(root: Path) -> Iterator[Finding]:
    yield warning(
        f"{root} is a local directory, which pods of a cluster cannot read",
        "for a cluster, use a store on S3: s3://BUCKET/PROJECT",
    )
    if not root.is_dir():
        yield warning(f"{root} does not exist yet", "nothing to do: the first publication creates it")
        return
    storage, key = open_storage(str(root)), _random_key()
    try:
        storage.create(key, _PROBE)
        is_same = storage.read(key)[0] == _PROBE
        storage.delete([key])
    except StorageError as error:
        yield from_error(State.PROBLEM, error, "fix the problem and check again")
        return
    if is_same:
        yield ok(f"{root} can be written and read")
    else:
        yield problem(f"a file in {root} was read back with other content", "check the disk")


def check_kfp(host: str | None, seconds: float, *, in_pod: bool, reader: ClusterReader | None) -> Iterator[Finding]:
    """Check that Kubeflow Pipelines answers at its address; in a pod, by default at `IN_CLUSTER_URL`.

    The remedies use the context of `reader`, if there is one.
    """
    address = (host or (IN_CLUSTER_URL if in_pod else "")).rstrip("/")
    if not address:
        yield skipped("no address of Kubeflow Pipelines given (--kfp or $KFP_HOST)")
        return
    place, cookie = find_pod_token(), os.environ.get("KFP_COOKIE")
    token = (os.environ.get("KFP_TOKEN") or (place.read_text(encoding="utf-8") if place.exists() else "")).strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    headers |= {"Cookie": cookie} if cookie else {}
    forward = "kubectl -n kubeflow port-forward service/ml-pipeline 8888:8888"

    def add_context(*commands: str) -> tuple[str, ...]:
        return reader.add_context(*commands) if reader else commands

    try:
        answer = httpx.get(f"{address}/apis/v2beta1/healthz", headers=headers, timeout=seconds)
    except (httpx.LocalProtocolError, UnicodeEncodeError):  # their messages contain the token
        yield problem("the token or cookie cannot be sent in a header", "copy $KFP_TOKEN or $KFP_COOKIE again")
        return
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        if untrusted := explain_untrusted(error, address):
            yield problem(*untrusted.split("; ", 1))
            return
        cause = "in time" if isinstance(error, httpx.TimeoutException) else f"({' '.join(str(error).split())[:200]})"
        yield Finding(
            State.UNANSWERED,
            f"Kubeflow Pipelines does not answer at {address} {cause}",
            "check the address, the NetworkPolicies, and that it runs; from outside the cluster, forward its port and "
            "use --kfp http://localhost:8888",
            add_context("kubectl -n kubeflow get deployment ml-pipeline", forward),
        )
        return
    found = _check_kfp_answer(address, answer)
    yield replace(found, commands=add_context(*found.commands))


def _check_kfp_answer(address: str, answer: httpx.Response) -> Finding:
    if answer.status_code in (401, 403) or answer.is_redirect:
        return problem(
            f"Kubeflow Pipelines at {address} rejects the credentials ({answer.status_code})",
            "set $KFP_TOKEN to a valid token, or $KFP_COOKIE to the cookie of a session",
        )
    if answer.status_code >= 500:
        text = f"Kubeflow Pipelines at {address} failed ({answer.status_code})"
        return Finding(
            State.UNANSWERED, text, "read its log", ("kubectl -n kubeflow logs deployment/ml-pipeline --tail 50",)
        )
    try:
        health = answer.json() if answer.is_success else None
    except ValueError:
        health = None
    if not isinstance(health, dict):
        kind = answer.headers.get("content-type", "no content type")
        return problem(
            f"the server at {address} is not Kubeflow Pipelines 2 ({answer.status_code}, {kind})",
            "use the address of its API; if a login page answers, set $KFP_TOKEN or $KFP_COOKIE",
        )
    version = health.get("tag_name") or health.get("apiServerTagName") or "(unknown version)"
    if health.get("multi_user") or health.get("apiServerMultiUser"):
        return ok(f"Kubeflow Pipelines {version} answers in multi-user mode: submit runs with --namespace")
    return ok(f"Kubeflow Pipelines {version} answers")
