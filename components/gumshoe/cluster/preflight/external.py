"""What a run needs beside the cluster: the store, and Kubeflow Pipelines."""

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
from gumshoe.cluster.preflight.client import ClusterReader
from gumshoe.cluster.preflight.result import Finding, State, from_error, ok, problem, skipped, warning
from gumshoe.errors import UnavailableError

if TYPE_CHECKING:
    from gumshoe.artifacts.s3 import Retention, S3Storage

_PROBE = b"gumshoe doctor wrote this, and removes it.\n"
_KEY = ".gumshoe-doctor-"  # how the keys begin that are written
_SKEW = timedelta(minutes=1)  # S3 refuses requests at 15
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_NOTHING = re.compile("(?!)")
IN_CLUSTER = "http://ml-pipeline.kubeflow.svc.cluster.local:8888"
"""Where Kubeflow Pipelines answers to a pod, unless somebody says otherwise."""
_TOKEN = Path("/var/run/secrets/kubeflow/pipelines/token")  # where Kubeflow mounts a service account's


def store(uri: str, seconds: float) -> Iterator[Finding]:
    """Whether these credentials may do in the store what a run does, by doing it to an object of its own.

    `seconds` is of a request. The object is removed again; it is not written where it could not be.
    """
    scheme, bucket, path = split_uri(uri)
    if scheme == "file":
        yield from _directory(Path(path))
        return
    from gumshoe.artifacts.s3 import AccessDeniedError, NoSuchBucketError, S3Storage

    storage = S3Storage(bucket, path, Limits(connect_timeout=seconds, read_timeout=seconds, attempts=2, backoff=1))
    rights = _Rights(bucket, path)
    try:
        list(storage.entries(_KEY))
        yield ok(f"{storage.uri} can be listed")
    except AccessDeniedError:
        yield rights.missing("listed", "s3:ListBucket")
    except NoSuchBucketError as error:
        endpoint = f" --endpoint-url {address}" if (address := os.environ.get("AWS_ENDPOINT_URL")) else ""
        make = f"aws s3 mb s3://{bucket}{endpoint}"
        yield from_error(State.PROBLEM, error, "make it, or correct the name", make)
        return
    except StorageError as error:
        yield from_error(State.PROBLEM, error, "mend what it says, then look again")
        return
    kept: Retention | None = None
    try:
        kept = storage.retention()
        yield from _kept(kept, rights)
    except AccessDeniedError:
        yield warning(
            f"whether s3://{bucket} keeps older versions of what is deleted is not known",
            f"allow s3:GetBucketVersioning, s3:GetLifecycleConfiguration and s3:GetBucketObjectLockConfiguration on "
            f"{rights.bucket_arn}",
        )
    try:
        storage.abandon_uploads(_KEY, _LONG_AGO, _NOTHING)
    except AccessDeniedError:
        yield warning(
            "`gumshoe artifacts prune` may not look for uploads that were never finished, which go on costing",
            f"allow s3:ListBucketMultipartUploads on {rights.bucket_arn}, and s3:AbortMultipartUpload on "
            f"{rights.objects_arn}",
        )
    if kept is None or not kept.locked_for:
        yield from _tried(storage, rights, is_versioned=bool(kept and kept.is_versioned))


class _Rights:
    """The rights that a store needs, as a policy of S3 names them."""

    def __init__(self, bucket: str, path: str) -> None:
        self.bucket, self.path = bucket, path
        self.bucket_arn = f"arn:aws:s3:::{bucket}"
        self.objects_arn = f"arn:aws:s3:::{f'{bucket}/{path}'.rstrip('/')}/*"

    def missing(self, done: str, right: str) -> Finding:
        arn = self.bucket_arn if right == "s3:ListBucket" else self.objects_arn
        where = f"s3://{self.bucket}/{self.path}".rstrip("/")
        return problem(
            f"{where} cannot be {done} (access denied: {right} is missing)", f"allow {right} on {arn} to these keys"
        )


def _key() -> str:
    """What no other run of this writes."""
    return _KEY + uuid.uuid4().hex


def _kept(kept: "Retention", rights: _Rights) -> Iterator[Finding]:
    """What keeps pruning from freeing anything."""
    if kept.locked_for:
        yield warning(
            f"an object lock keeps all that is written to s3://{rights.bucket} for {kept.locked_for}: nothing is "
            "freed by pruning until then, and writing was not tried here, as it would stay",
            "take a bucket without one, or see that it is meant",
            f"aws s3api get-object-lock-configuration --bucket {rights.bucket}",
        )
    elif kept.is_versioned and not kept.expires:
        rule = (
            '{"Rules":[{"ID":"gumshoe","Status":"Enabled","Filter":{"Prefix":"%s"},'
            '"NoncurrentVersionExpiration":{"NoncurrentDays":7}}]}' % (f"{rights.path}/" if rights.path else "")
        )
        yield warning(
            f"s3://{rights.bucket} keeps older versions for ever: what `gumshoe artifacts prune` removes is not freed",
            "let them expire; this sets the bucket's whole lifecycle, so add its other rules",
            f"aws s3api put-bucket-lifecycle-configuration --bucket {rights.bucket} --lifecycle-configuration '{rule}'",
        )


def _tried(storage: "S3Storage", rights: _Rights, *, is_versioned: bool) -> Iterator[Finding]:
    """Delete, write, read and write again an object, the first while there is none."""
    from gumshoe.artifacts.s3 import AccessDeniedError

    key = _key()
    try:
        storage.delete([key])
    except AccessDeniedError:
        yield rights.missing("deleted from", "s3:DeleteObject")
        yield skipped("writing and reading were not tried: what is written could not be removed")
        return
    except StorageError as error:
        yield from_error(State.PROBLEM, error, "mend what it says, then look again")
        return
    yield from _written(storage, key, rights)
    try:
        storage.delete([key])
        if is_versioned:
            storage.delete_versions(key)
    except (StorageError, UnavailableError) as error:
        yield warning(
            f"what was written to try it stays, {len(_PROBE)} bytes as {storage.uri}/{key} or an older version of it "
            f"({error.message_with_code})",
            f"remove it; for older versions allow s3:ListBucketVersions on {rights.bucket_arn} and "
            f"s3:DeleteObjectVersion on {rights.objects_arn}",
            f"aws s3 rm {storage.uri}/{key}",
        )
        return
    yield ok("objects can be deleted")


def _written(storage: Storage, key: str, rights: _Rights) -> Iterator[Finding]:
    """Write, read and write again; raises nothing, as what was written is still to be removed."""
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
            yield problem("other bytes come back than were written", "see what stands between: a proxy, a gateway")
        done, right = "written to again", "s3:PutObject"
        yield from _conditions(storage, key, tag)
    except AccessDeniedError:
        yield rights.missing(done, right)
    except StorageError as error:
        found = from_error(State.PROBLEM, error, "mend what it says, then look again")
        yield replace(found, text=f"{storage.uri} cannot be {done}: {error.message}")
    except UnavailableError as error:
        yield from_error(State.UNANSWERED, error)
    yield from _clock(storage, key)


def _conditions(storage: Storage, key: str, tag: str) -> Iterator[Finding]:
    """That a write which is to happen only in some state happens only in that."""
    mend = "use a store with conditional writes (AWS S3, MinIO since 2024-11, Ceph since Squid)"
    if storage.create(key, _PROBE):
        yield problem("the store ignores If-None-Match: a published version could be overwritten", mend)
    elif storage.swap(key, _PROBE, '"0123456789abcdef0123456789abcdef"'):
        yield problem("the store ignores If-Match: `latest` could go back to an older version", mend)
    elif not storage.swap(key, _PROBE, tag):
        yield problem("the store refuses If-Match with the tag that it gave itself", mend)
    else:
        yield ok("conditional writes are kept to")


def _clock(storage: Storage, key: str) -> Iterator[Finding]:
    """That this machine's clock is the store's."""
    try:
        found = next(storage.entries(key), None)
    except (StorageError, UnavailableError):
        return  # which has been told of
    if found is None:
        return
    ahead = datetime.now(UTC) - found.modified
    if abs(ahead) > _SKEW:
        how = f"{abs(ahead).total_seconds() / 60:.0f} minutes {'ahead of' if ahead > timedelta() else 'behind'}"
        yield warning(
            f"this machine's clock is {how} the store's: at 15 it refuses every request",
            "set it by NTP",
            "timedatectl set-ntp true",
        )


def _directory(root: Path) -> Iterator[Finding]:
    yield warning(
        f"{root} is a directory of this machine, which pods of a cluster do not see",
        "name a store on S3 for a cluster, s3://BUCKET/PROJECT",
    )
    if not root.is_dir():
        yield warning(f"{root} is not there yet", "nothing: whatever publishes first makes it")
        return
    storage, key = open_storage(str(root)), _key()
    try:
        storage.create(key, _PROBE)
        is_same = storage.read(key)[0] == _PROBE
        storage.delete([key])
    except StorageError as error:
        yield from_error(State.PROBLEM, error, "mend what it says, then look again")
        return
    told = ok(f"{root} takes and gives files")
    yield told if is_same else problem(f"{root} gives other bytes than it took", "look at its disk")


def kfp(host: str | None, seconds: float, *, in_pod: bool, asked: ClusterReader | None) -> Iterator[Finding]:
    """That Kubeflow Pipelines answers at its address; in a pod, at its usual one. Commands are for the cluster that is
    asked, where one is.
    """
    address = (host or (IN_CLUSTER if in_pod else "")).rstrip("/")
    if not address:
        yield skipped("where Kubeflow Pipelines is was not said (--kfp or $KFP_HOST)")
        return
    token = os.environ.get("KFP_TOKEN") or (_TOKEN.read_text(encoding="utf-8").strip() if _TOKEN.exists() else "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    forward = "kubectl -n kubeflow port-forward service/ml-pipeline 8888:8888"

    def there(*commands: str) -> tuple[str, ...]:
        return asked.there(*commands) if asked else commands

    try:
        answer = httpx.get(f"{address}/apis/v2beta1/healthz", headers=headers, timeout=seconds)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        said = "in time" if isinstance(error, httpx.TimeoutException) else f"({' '.join(str(error).split())[:200]})"
        yield Finding(
            State.UNANSWERED,
            f"Kubeflow Pipelines does not answer at {address} {said}",
            "check the address, the NetworkPolicies, and that it runs; from outside the cluster, forward it and name "
            "--kfp http://localhost:8888",
            there("kubectl -n kubeflow get deployment ml-pipeline", forward),
        )
        return
    found = _health(address, answer)
    yield replace(found, commands=there(*found.commands))


def _health(address: str, answer: httpx.Response) -> Finding:
    if answer.status_code in (401, 403):
        return problem(
            f"Kubeflow Pipelines at {address} refuses ({answer.status_code})",
            "give a token that it takes, as $KFP_TOKEN",
        )
    if answer.status_code >= 500:
        text = f"Kubeflow Pipelines at {address} is not well ({answer.status_code})"
        return Finding(
            State.UNANSWERED, text, "see its log", ("kubectl -n kubeflow logs deployment/ml-pipeline --tail 50",)
        )
    try:
        told = answer.json() if answer.is_success else None
    except ValueError:
        told = None
    if not isinstance(told, dict):
        kind = answer.headers.get("content-type", "nothing that says what it is")
        return problem(
            f"what answers at {address} is no Kubeflow Pipelines 2 ({answer.status_code}, {kind})",
            "name its API's address; where it is a page to sign in at, give a token as $KFP_TOKEN",
        )
    version = told.get("tag_name") or told.get("apiServerTagName") or "of an unknown version"
    if told.get("multi_user") or told.get("apiServerMultiUser"):
        return ok(f"Kubeflow Pipelines {version} answers; it has several users: submit with --namespace")
    return ok(f"Kubeflow Pipelines {version} answers")
