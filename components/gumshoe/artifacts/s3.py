"""S3 as a `Storage`, through boto3: any S3 API, at AWS_ENDPOINT_URL if it is set."""

import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import botocore.exceptions as failures
import botocore.session
import tenacity
import urllib3.exceptions
from boto3.s3.transfer import TransferConfig, create_transfer_manager
from botocore.config import Config
from s3transfer.subscribers import BaseSubscriber
from s3transfer.utils import OSUtils, ReadFileChunk

from gumshoe.artifacts.storage import (
    DamagedError,
    Deadline,
    Entry,
    InvalidUriError,
    Limits,
    NotFoundError,
    StorageError,
)
from gumshoe.errors import UnavailableError
from gumshoe.network import explain_untrusted, find_ca_bundle

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_CONDITION_FAILED = {"PreconditionFailed", "412"}
_MISSING = {"NoSuchKey", "404", "NotFound"}
_BUSY = {
    "SlowDown",
    "ServiceUnavailable",
    "InternalError",
    "RequestTimeout",
    "Throttling",
    "ConditionalRequestConflict",
    "OperationAborted",
    "500",
    "502",
    "503",
    "504",
}
_DENIED = {"AccessDenied", "403", "Forbidden", "AllAccessDisabled"}
_SETTING_MISSING = {  # the bucket has no such setting, or the server does not support it
    "NoSuchLifecycleConfiguration",
    "ObjectLockConfigurationNotFoundError",
    "NotImplemented",
    "MethodNotAllowed",
}
_REGION = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "301",
    "400",
}
_CONNECTION_ERRORS = (
    failures.ConnectionError,
    failures.HTTPClientError,
    failures.IncompleteReadError,
    urllib3.exceptions.HTTPError,
    OSError,
)


class AccessDeniedError(StorageError):
    """The credentials are known but do not allow the operation."""


class NoSuchBucketError(StorageError):
    """The bucket does not exist."""


def explain_s3_error(error: Exception, bucket: str, key: str) -> Exception:
    """Return the error that tells the user what went wrong with a bucket and key, and what to do."""
    where = f"s3://{bucket}/{key}"
    if isinstance(error, failures.NoCredentialsError | failures.PartialCredentialsError):
        return StorageError(
            "store.no-credentials",
            f"{where}: no S3 credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or "
            "give this pod's service account a role",
        )
    if isinstance(error, failures.ClientError):
        return _explain_response(error, bucket, where)
    if isinstance(error, failures.FlexibleChecksumError):
        return DamagedError(
            "store.checksum-mismatch", f"{where}: the received bytes do not match their checksum: {error}; try again"
        )
    if isinstance(error, failures.ParamValidationError):
        return StorageError(
            "store.invalid-bucket-or-key",
            f"{where}: not a bucket and key that S3 allows: {' '.join(str(error).split())}; correct the URI",
        )
    if isinstance(error, failures.BotoCoreError) and not isinstance(error, _CONNECTION_ERRORS):
        return StorageError(
            "store.client-misconfigured", f"{where}: {error}; check the AWS settings (AWS_* and ~/.aws)"
        )
    if untrusted := explain_untrusted(error, f"the server of {where}"):
        return StorageError("network.untrusted-certificate", untrusted)
    return UnavailableError(
        "store.unreachable",
        f"{where}: the server did not answer: {type(error).__name__}: {error}; check AWS_ENDPOINT_URL and the "
        "network, then try again",
    )


def _explain_response(error: failures.ClientError, bucket: str, where: str) -> Exception:
    code = str(error.response.get("Error", {}).get("Code", ""))
    message = str(error.response.get("Error", {}).get("Message", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if code == "NoSuchBucket":
        return NoSuchBucketError(
            "store.no-such-bucket",
            f"{where}: bucket {bucket!r} does not exist; create it, or check its name and AWS_ENDPOINT_URL",
        )
    if code in _MISSING:
        return NotFoundError("store.not-found", f"{where} does not exist; check the name")
    if code == "InvalidAccessKeyId":
        return StorageError(
            "store.unknown-access-key",
            f"{where}: the server does not know this access key ({code}); check AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL",
        )
    if code == "SignatureDoesNotMatch":
        return StorageError(
            "store.wrong-secret-key",
            f"{where}: the secret key is not that of this access key ({code}); check AWS_SECRET_ACCESS_KEY",
        )
    if code in {"ExpiredToken", "ExpiredTokenException"}:
        return StorageError(
            "store.expired-credentials",
            f"{where}: the credentials have expired ({code}); sign in again, or set a new AWS_SESSION_TOKEN",
        )
    if code == "InvalidToken":
        return StorageError(
            "store.invalid-session-token",
            f"{where}: the server does not accept the session token ({code}); check AWS_SESSION_TOKEN",
        )
    if code == "RequestTimeTooSkewed":
        return StorageError(
            "store.clock-skew", f"{where}: this machine's clock is wrong: {message}; set it with NTP, then try again"
        )
    if code in _REGION and (code not in {"301", "400"} or "x-amz-bucket-region" in headers):
        region = headers.get("x-amz-bucket-region") or error.response.get("Error", {}).get("Region", "another region")
        return StorageError(
            "store.wrong-region", f"{where}: bucket {bucket!r} is in {region} ({code}); set AWS_REGION to that region"
        )
    if code in _DENIED:
        return AccessDeniedError(
            "store.access-denied",
            f"{where}: access denied ({error.operation_name}); these credentials need s3:ListBucket on the bucket, "
            "and s3:GetObject, s3:PutObject and s3:DeleteObject on its objects",
        )
    if code in _BUSY or (isinstance(status, int) and status >= 500):
        return UnavailableError(
            "store.server-failing", f"{where}: the server is overloaded or failing: {code} {message}; try again later"
        )
    return StorageError(
        "store.request-refused", f"{where}: the server refused {error.operation_name}: {code} {message}"
    )


@dataclass(frozen=True, slots=True)
class Retention:
    """Settings of a bucket that keep deleted objects."""

    is_versioned: bool = False
    """True if it keeps them as older versions."""
    expires: bool = False
    """True if a lifecycle rule removes older versions after some time."""
    locked_for: str = ""
    """Time during which nothing can be deleted, e.g. "30 days". Empty if nothing is locked."""


class S3Storage:
    """Store objects below a prefix of a bucket."""

    def __init__(self, bucket: str, prefix: str, limits: Limits) -> None:
        self._bucket, self._prefix, self._limits = bucket, f"{prefix}/" if prefix else "", limits
        self.uri = f"s3://{bucket}/{prefix}".rstrip("/")
        try:
            with self._explain_errors(""):
                self._client: S3Client = boto3.client(
                    "s3",
                    region_name=os.environ.get("AWS_REGION") or None,  # boto3 itself reads only AWS_DEFAULT_REGION
                    verify=_find_certificates(),
                    config=Config(
                        connect_timeout=min(limits.connect_timeout, limits.deadline),
                        read_timeout=min(limits.read_timeout, limits.deadline),
                        retries={"mode": "standard", "total_max_attempts": limits.attempts},
                        max_pool_connections=limits.workers + 2,
                    ),
                )
        except ValueError as error:
            raise InvalidUriError(
                "store.invalid-endpoint", f"AWS_ENDPOINT_URL is not a URL: {error}; use https://HOST:PORT"
            ) from error

    @contextmanager
    def _explain_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except (failures.BotoCoreError, failures.ClientError, urllib3.exceptions.HTTPError) as error:
            raise explain_s3_error(error, self._bucket, self._prefix + key) from error

    def entries(self, prefix: str = "") -> Iterator[Entry]:
        with self._explain_errors(prefix):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for item in page.get("Contents", []):
                    yield Entry(item["Key"].removeprefix(self._prefix), item["Size"], item["LastModified"])

    def open(self, key: str, offset: int = 0) -> io.BufferedReader:
        reader = _Reader(self, key, offset)
        return io.BufferedReader(reader, 1 << 20)

    def get(self, key: str, offset: int, tag: str | None) -> dict[str, Any]:
        """Send one GET request from byte `offset` on, for the version with the given ETag if any."""
        request: dict[str, Any] = {"Bucket": self._bucket, "Key": self._prefix + key}
        if offset:
            request["Range"] = f"bytes={offset}-"
        if tag:
            request["IfMatch"] = tag
        try:
            for attempt in _retry_policy(self._limits, _is_truncated):
                with attempt, self._explain_errors(key):
                    answer: dict[str, Any] = self._client.get_object(**request)  # type: ignore[assignment]
        except StorageError as error:
            if offset and _cause_code(error) in {"InvalidRange", "416"}:
                return {"Body": io.BytesIO(), "ETag": tag}  # the whole object has been read
            if tag and _cause_code(error) in _CONDITION_FAILED:
                raise StorageError(
                    "store.object-changed", f"{self.uri}/{key} was replaced while it was read; start again"
                ) from None
            raise
        answer["Body"]._raw_stream = _UnbufferedBody(answer["Body"]._raw_stream)
        return answer

    def read(self, key: str) -> tuple[bytes, str]:
        deadline = Deadline(self._limits.read_timeout * self._limits.attempts)
        reader = _Reader(self, key, 0)
        data = bytearray()
        with io.BufferedReader(reader) as file:
            while block := file.read1(1 << 20):
                deadline.check()
                data += block
        return bytes(data), reader.tag or ""

    def upload(self, files: dict[str, Path], deadline: Deadline, advance: Callable[[int], object]) -> None:
        config = TransferConfig(
            multipart_threshold=self._limits.part_size,
            multipart_chunksize=self._limits.part_size,
            max_concurrency=self._limits.workers,
        )
        with create_transfer_manager(self._client, config, _WholeFiles()) as manager:
            futures = {
                key: manager.upload(
                    str(path),
                    self._bucket,
                    self._prefix + key,
                    subscribers=[_Progress(deadline, advance)],
                )
                for key, path in files.items()
            }
            for key, future in futures.items():
                try:
                    with self._explain_errors(key):
                        future.result()
                except (UnavailableError, CancelledError):
                    deadline.check()  # uploads fail or are cancelled once the deadline is over
                    raise
                except OSError as error:
                    raise StorageError(
                        "store.file-unreadable", f"cannot read {files[key]}: {error.strerror or error}"
                    ) from error

    def create(self, key: str, data: bytes) -> bool:
        return self._write_if(key, data, {"IfNoneMatch": "*"})

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        return self._write_if(key, data, {"IfMatch": tag})

    def _write_if(self, key: str, data: bytes, condition: dict[str, str]) -> bool:
        for attempt in _retry_policy(self._limits, _is_conflict):
            with attempt, self._explain_errors(key):
                try:
                    self._client.put_object(
                        Bucket=self._bucket,
                        Key=self._prefix + key,
                        Body=data,
                        **condition,  # type: ignore[arg-type]
                    )
                except failures.ClientError as error:
                    if _error_code(error) in _CONDITION_FAILED:
                        return False
                    raise
        return True

    def delete(self, keys: Iterable[str]) -> None:
        all_keys = list(keys)
        for start in range(0, len(all_keys), 1000):  # S3 allows at most 1,000 keys per request
            batch = all_keys[start : start + 1000]
            with self._explain_errors(batch[0]):
                answer = self._client.delete_objects(
                    Bucket=self._bucket, Delete={"Objects": [{"Key": self._prefix + key} for key in batch]}
                )
            for failed in answer.get("Errors", []):
                where = f"s3://{self._bucket}/{failed.get('Key')}"
                message = f"cannot delete {where}: {failed.get('Code')} {failed.get('Message')}"
                if failed.get("Code") in _DENIED:
                    raise AccessDeniedError("store.access-denied", f"{message}; these credentials need s3:DeleteObject")
                raise StorageError("store.request-refused", message)

    def retention(self) -> Retention:
        """Return what the bucket keeps of deleted objects.

        Raises:
            AccessDeniedError: if the credentials do not allow reading the bucket's settings.
        """
        with self._explain_errors(""):
            if self._client.get_bucket_versioning(Bucket=self._bucket).get("Status") is None:
                return Retention()  # object lock requires versioning
            rules = self._read_setting(self._client.get_bucket_lifecycle_configuration).get("Rules", [])
            lock = self._read_setting(self._client.get_object_lock_configuration).get("ObjectLockConfiguration", {})
        expires = any(rule["Status"] == "Enabled" and "NoncurrentVersionExpiration" in rule for rule in rules)
        rule = lock.get("Rule", {}).get("DefaultRetention", {})
        locked = next((f"{rule[unit]} {unit.lower()}" for unit in ("Days", "Years") if unit in rule), "")
        return Retention(is_versioned=True, expires=expires, locked_for=locked)

    def _read_setting(self, ask: Callable[..., Any]) -> dict[str, Any]:
        """Return one of the bucket's settings, or an empty dict if it is not set or not supported."""
        try:
            found: dict[str, Any] = ask(Bucket=self._bucket)
        except failures.ClientError as error:
            if _error_code(error) in _SETTING_MISSING:
                return {}
            raise
        return found

    def delete_versions(self, prefix: str) -> None:
        """Delete the older versions of objects whose key starts with `prefix`, in a versioned bucket."""
        with self._explain_errors(prefix):
            pages = self._client.get_paginator("list_object_versions")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for each in [*page.get("Versions", []), *page.get("DeleteMarkers", [])]:
                    self._client.delete_object(Bucket=self._bucket, Key=each["Key"], VersionId=each["VersionId"])

    def abandon_uploads(self, prefix: str, before: datetime, keys: re.Pattern[str]) -> int:
        count = 0
        with self._explain_errors(prefix):
            pages = self._client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix):
                for upload in page.get("Uploads", []):
                    if upload["Initiated"] < before and keys.fullmatch(upload["Key"].removeprefix(self._prefix)):
                        self._client.abort_multipart_upload(
                            Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                        )
                        count += 1
        return count


def _find_certificates() -> str | None:
    """Return the file of trusted certificates, or None if boto3 has a setting of its own (AWS_CA_BUNDLE, ca_bundle)."""
    return None if botocore.session.get_session().get_config_variable("ca_bundle") else find_ca_bundle()


class _Progress(BaseSubscriber):
    """Report the bytes of an upload, and cancel it once its deadline is over.

    It raises nothing: an exception raised here while a file is being closed would leave the file open.
    """

    def __init__(self, deadline: Deadline, advance: Callable[[int], object]) -> None:
        self._deadline, self._advance = deadline, advance

    def on_progress(self, future: Any, bytes_transferred: int, **_: Any) -> None:
        """Count the bytes sent since the last call. s3transfer calls this."""
        self._advance(bytes_transferred)
        if self._deadline.is_over:
            future.cancel()


class _WholeFiles(OSUtils):
    """Open files for uploads so that one that becomes shorter fails. Otherwise the server would wait for the rest."""

    def open_file_chunk_reader_from_fileobj(self, *arguments: Any, **options: Any) -> "_WholeChunk":
        chunk = _WholeChunk(*arguments, **options)
        chunk.disable_callback()  # until it is sent: it is read before, for its checksum
        return chunk


class _WholeChunk(ReadFileChunk):
    def read(self, amount: int | None = None) -> bytes:
        wanted = len(self) - self.tell()
        if amount is not None and amount >= 0:
            wanted = min(wanted, amount)
        data: bytes = super().read(amount)
        if len(data) < wanted:
            raise OSError(f"{wanted - len(data):,} bytes are missing; it became shorter while it was sent")
        return data


class _UnbufferedBody:
    """A response body whose `read` returns the bytes that have arrived. urllib3's own waits for the full amount."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def read(self, amount: int) -> bytes:
        return bytes(self._response.read1(amount))

    def close(self) -> None:
        self._response.close()


class _Reader(io.RawIOBase):
    """Read an object's bytes from `offset` on, and resume where a connection was dropped or went silent."""

    def __init__(self, storage: S3Storage, key: str, offset: int) -> None:
        self._storage, self._key, self._position = storage, key, offset
        self.tag: str | None = None
        self._body: Any = None
        self._connect()

    def _connect(self) -> None:
        answer = self._storage.get(self._key, self._position, self.tag)
        self._body, self.tag = answer["Body"], answer["ETag"]

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        try:
            for attempt in _retry_policy(self._storage._limits, lambda error: isinstance(error, _CONNECTION_ERRORS)):
                with attempt:
                    if self._body is None:
                        self._connect()
                    try:
                        block = self._body.read(len(buffer))
                    except _CONNECTION_ERRORS:
                        self._disconnect()
                        raise
        except (*_CONNECTION_ERRORS, failures.FlexibleChecksumError) as error:
            raise explain_s3_error(error, self._storage._bucket, self._storage._prefix + self._key) from error
        buffer[: len(block)] = block
        self._position += len(block)
        return len(block)

    def _disconnect(self) -> None:
        if self._body is not None:
            self._body.close()
        self._body = None

    def close(self) -> None:
        self._disconnect()
        super().close()


def _retry_policy(limits: Limits, should_retry: Callable[[BaseException], bool]) -> tenacity.Retrying:
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(should_retry),
        stop=tenacity.stop_after_attempt(limits.attempts),
        wait=tenacity.wait_random_exponential(multiplier=0.5, max=limits.backoff),
        reraise=True,
    )


def _error_code(error: BaseException | None) -> str:
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, failures.ClientError) else ""


def _cause_code(error: StorageError) -> str:
    return _error_code(error.__cause__)


def _is_truncated(error: BaseException) -> bool:
    """Return True if the response to a GET was an error that broke off, which botocore ignores."""
    return isinstance(error.__cause__, urllib3.exceptions.HTTPError)


def _is_conflict(error: BaseException) -> bool:
    """Return True if two conditional writes collided. S3 then asks to repeat the request."""
    return _error_code(error.__cause__) in {"ConditionalRequestConflict", "409", "OperationAborted"}
