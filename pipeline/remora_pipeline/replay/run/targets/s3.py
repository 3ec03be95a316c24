"""Sends real requests to an S3 gateway, which notifies of them by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import botocore.exceptions as errors
from aiobotocore.config import AioConfig
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import get_session

from remora_pipeline.replay.errors import ReplayRefused
from remora_pipeline.replay.run.schedule import DueEvent
from remora_pipeline.replay.run.targets import AttemptResult, TargetAnswer
from remora_pipeline.replay.shape import COPY, DELETE, MARK, MPU_COMPLETE

SOURCE_BUCKET = "remora-replay-source"
"""Where objects lie that are copied, one of each size: a bucket without notifications, so that they leave no trace."""

_METADATA = MARK.removeprefix("x-amz-meta-")
_BUSY = frozenset({429, 503})
_NOT_SENT = (errors.EndpointConnectionError, errors.ConnectTimeoutError)
_EVENTS = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where the gateway is, and what opens it; `region` is the zonegroup's name."""

    url: str
    region: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(repr=False)


_mark: ContextVar[str] = ContextVar("mark")


def _repeat_metadata(params: dict[str, Any], **_: object) -> None:
    """Add the metadata to what completes an upload: there radosgw notifies of that request's, not of the object's."""
    params["headers"][MARK] = _mark.get()


class _OneAttempt(AIOHTTPSession):  # type: ignore[misc]  # it has no types
    """aiohttp repeats a PUT or DELETE by itself, once, when a kept connection breaks: not here."""

    async def _get_session(self, proxy_url: str | None) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = await super()._get_session(proxy_url)
        session._retry_connection = False  # noqa: SLF001  # there is no public way
        return session


@asynccontextmanager
async def s3_client(gateway: Gateway, connections: int, **options: Any) -> AsyncIterator[Any]:
    """A client of a gateway; `options` are further ones of botocore's Config, such as how often it tries again."""
    config = AioConfig(
        s3={"addressing_style": "path"},
        signature_version="s3v4",
        max_pool_connections=connections,
        connect_timeout=10,
        read_timeout=60,
        **options,
    )
    async with get_session().create_client(
        "s3",
        region_name=gateway.region,
        endpoint_url=gateway.url,
        aws_access_key_id=gateway.access_key,
        aws_secret_access_key=gateway.secret_key,
        aws_session_token=gateway.session_token or None,
        config=config,
    ) as client:
        yield client


@asynccontextmanager
async def _client(gateway: Gateway, concurrency: int) -> AsyncIterator[Any]:
    async with s3_client(
        gateway,
        concurrency,
        retries={"total_max_attempts": 1},
        parameter_validation=False,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        http_session_cls=_OneAttempt,
    ) as client:
        client.meta.events.register("before-call.s3.CompleteMultipartUpload", _repeat_metadata)
        yield client


class S3Target:
    """Makes one request of each event: what the gateway will notify of in the same words.

    Objects have `size_cap` bytes at most. What is copied is an object that was made for it, since it is not known what
    the trace's copies were of. An answer that is lost leaves an event unknown, since S3 cannot tell a repetition.
    """

    batch = 1
    is_repeatable = False

    def __init__(self, client: Any, run_id: str, size_cap: int) -> None:
        self._client, self._run_id, self._body = client, run_id, bytes(size_cap)
        self._copied: set[int] = set()

    async def send(self, events: Sequence[DueEvent], request: str) -> TargetAnswer:
        """Attempt what the one event tells of."""
        (event,) = events
        try:
            return TargetAnswer(AttemptResult.DONE, await self._do(event))
        except _Prepared as exc:
            answer = _answer(exc.cause)
            is_lost = answer.result is AttemptResult.LOST  # nothing has happened yet, so it may be sent again
            return TargetAnswer(AttemptResult.BUSY, answer.status, answer.error) if is_lost else answer
        except Exception as exc:  # botocore raises its own errors, aiohttp's and asyncio's
            return _answer(exc)

    async def _do(self, event: DueEvent) -> int:
        """The status of the request that notifies."""
        place = {"Bucket": event.bucket, "Key": event.key}
        mark = f"{self._run_id}/{event.seq}/{event.kseq}"
        marked = place | {"Metadata": {_METADATA: mark}}
        body = self._body[: event.size]
        if event.op == DELETE:
            answer = await self._client.delete_object(**place)
        elif event.op == COPY:
            source = await self._source(body)
            answer = await self._client.copy_object(**marked, CopySource=source, MetadataDirective="REPLACE")
        elif event.op == MPU_COMPLETE:
            uploaded = await self._uploaded(marked, place, body)
            _mark.set(mark)
            answer = await self._client.complete_multipart_upload(**place, **uploaded)
        else:
            answer = await self._client.put_object(**marked, Body=body)
        status: int = answer["ResponseMetadata"]["HTTPStatusCode"]
        return status

    async def _source(self, body: bytes) -> dict[str, str]:
        """An object to be copied, of this size."""
        source = {"Bucket": SOURCE_BUCKET, "Key": f"{len(body)}"}
        if len(body) not in self._copied:
            try:
                await self._client.put_object(**source, Body=body)
            except Exception as exc:
                raise _Prepared(exc) from exc
            self._copied.add(len(body))
        return source

    async def _uploaded(self, marked: dict[str, Any], place: dict[str, Any], body: bytes) -> dict[str, Any]:
        """A multipart upload that only has to be completed, which alone notifies."""
        try:
            upload = {"UploadId": (await self._client.create_multipart_upload(**marked))["UploadId"]}
            part = await self._client.upload_part(**place, **upload, PartNumber=1, Body=body)
        except Exception as exc:
            raise _Prepared(exc) from exc
        return upload | {"MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}}


class _Prepared(Exception):
    """What precedes the request that counts has failed."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _answer(exc: Exception) -> TargetAnswer:
    """What an error tells of the request."""
    match exc:
        case errors.ClientError():
            meta = exc.response.get("ResponseMetadata", {})
            status, code = meta.get("HTTPStatusCode"), exc.response.get("Error", {}).get("Code")
            if status in _BUSY:
                wait = str(meta.get("HTTPHeaders", {}).get("retry-after", ""))
                return TargetAnswer(
                    AttemptResult.BUSY, status, code, min(float(wait), 60.0) if wait.isdecimal() else 0.0
                )
            return TargetAnswer(
                AttemptResult.LOST if status is None or status >= 500 else AttemptResult.REFUSED, status, code
            )
        case UnicodeError():
            return TargetAnswer(AttemptResult.REFUSED, error="the key is not UTF-8")
        case _ if isinstance(exc, _NOT_SENT):
            return TargetAnswer(AttemptResult.BUSY, error=str(exc))
        case errors.BotoCoreError() | aiohttp.ClientError() | OSError() | TimeoutError():
            return TargetAnswer(AttemptResult.LOST, error=str(exc) or type(exc).__name__)
        case _:
            raise exc


@asynccontextmanager
async def s3_target(gateway: Gateway, run_id: str, size_cap: int, concurrency: int) -> AsyncIterator[S3Target]:
    """A connection to a gateway; nothing is asked yet."""
    async with _client(gateway, concurrency) as client:
        yield S3Target(client, run_id, size_cap)


async def check_s3(
    gateway: Gateway, topic: str, buckets: Iterable[str], *, copies: bool, create: bool, is_dry: bool = False
) -> list[str]:
    """Return when all buckets are there and notify the topic, and where there are copies, the bucket for these too.

    With `create` what is missing is made, and returned; a bucket that is there is left as it is. Where this `is_dry`
    nothing is made, and what would be is returned. Raises ReplayRefused.
    """
    missing = []
    async with _client(gateway, 4) as client:
        try:
            for bucket in buckets:
                arn = f"arn:aws:sns:{gateway.region}::{topic}"
                if not await _check_bucket(client, bucket, arn, create=create, is_dry=is_dry):
                    missing.append(bucket)
            if copies and not await _exists(client, SOURCE_BUCKET, create=create):
                missing.append(SOURCE_BUCKET)
                if not is_dry:
                    await client.create_bucket(Bucket=SOURCE_BUCKET)
        except (errors.BotoCoreError, errors.ClientError, aiohttp.ClientError, OSError) as exc:
            raise ReplayRefused(f"{gateway.url}: {exc}") from exc
    return missing


async def _check_bucket(client: Any, bucket: str, arn: str, *, create: bool, is_dry: bool) -> bool:
    """Whether the bucket was there, else it is made. Raises ReplayRefused for one that does not notify the topic."""
    if await _exists(client, bucket, create=create):
        found = await client.get_bucket_notification_configuration(Bucket=bucket)
        arns = [each["TopicArn"] for each in found.get("TopicConfigurations", ())]
        if not any(each.rpartition(":")[2] == arn.rpartition(":")[2] for each in arns):
            raise ReplayRefused(f"the bucket {bucket} does not notify {arn.rpartition(':')[2]}")
        return True
    if not is_dry:
        await client.create_bucket(Bucket=bucket)
        chosen = {"Id": "remora-replay", "TopicArn": arn, "Events": _EVENTS}
        await client.put_bucket_notification_configuration(
            Bucket=bucket, NotificationConfiguration={"TopicConfigurations": [chosen]}
        )
    return False


async def _exists(client: Any, bucket: str, *, create: bool) -> bool:
    try:
        await client.head_bucket(Bucket=bucket)
    except errors.ClientError as exc:
        if exc.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
            raise
        if not create:
            raise ReplayRefused(f"there is no bucket {bucket}; make it, or use --create-buckets") from exc
        return False
    return True
