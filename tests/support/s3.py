"""A zone with its radosgw: S3 and SNS as its users have them, and requests that no client library would send."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import json
import os
import shutil
import subprocess
import urllib.parse
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yarl
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from support.ceph import Ceph

_DEV_CEPH = Path(__file__).parents[2] / "scripts/dev-ceph"
_CEPH20_ROOT = _DEV_CEPH.parent / "dev/ceph20-root"


@dataclass(frozen=True)
class Zone:
    """A running cluster with a radosgw, as `scripts/dev-ceph` made it."""

    name: str
    release: int
    env: dict[str, Any]

    @property
    def ceph(self) -> Ceph:
        """The cluster below."""
        return Ceph(self.name, self.env)

    @property
    def rados(self) -> dict[str, object]:
        """The `[rados]` section of a daemon with the permissions that an operator is told to give."""
        return {"conf": self.env["conf"], "name": self.env["client"], "keyring": self.env["keyring"]}

    def queue(self, topic: str) -> str:
        """The name of the queue of a topic without a tenant."""
        return topic if self.release < 19 else f":{topic}"

    @contextlib.asynccontextmanager
    async def s3(self) -> AsyncIterator[Any]:
        """A client for buckets and objects."""
        async with self._client("s3", s3={"addressing_style": "path"}) as client:
            yield client

    @contextlib.asynccontextmanager
    async def sns(self) -> AsyncIterator[Any]:
        """A client for topics."""
        async with self._client("sns") as client:
            yield client

    def _client(self, service: str, **options: object) -> Any:
        # Checksums that newer clients add by themselves are unknown to older gateways.
        config = AioConfig(
            retries={"max_attempts": 2},
            parameter_validation=False,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            **options,
        )
        return get_session().create_client(
            service,
            region_name=self.env["region"],
            endpoint_url=self.env["s3"]["endpoint"],
            aws_access_key_id=self.env["s3"]["access_key"],
            aws_secret_access_key=self.env["s3"]["secret_key"],
            config=config,
        )

    async def raw(
        self, method: str, bucket: str, key: bytes, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> int:
        """One signed request for a key of any bytes; the status code."""
        path = f"/{bucket}/{urllib.parse.quote(key, safe='/~')}"
        url = yarl.URL(self.env["s3"]["endpoint"] + path, encoded=True)
        signed = _signed(method, path, url.authority, self.env, dict(headers or {}))
        async with aiohttp.ClientSession() as session, session.request(method, url, data=body, headers=signed) as reply:
            await reply.read()
            return reply.status


def _signed(method: str, path: str, host: str, env: dict[str, Any], extra: dict[str, str]) -> dict[str, str]:
    """The headers of a request with Amazon's version 4 signature; its body is left out of it."""
    now = datetime.datetime.now(datetime.UTC)
    stamp, day, region = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d"), env["region"]
    headers = extra | {"host": host, "x-amz-date": stamp, "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"{method}\n{path}\n\n{lines}\n{names}\nUNSIGNED-PAYLOAD"
    scope = f"{day}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    secret = f"AWS4{env['s3']['secret_key']}".encode()
    for part in (day, region, "s3", "aws4_request"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    signature = hmac.new(secret, text.encode(), "sha256").hexdigest()
    credential = f"{env['s3']['access_key']}/{scope}"
    return headers | {
        "Authorization": f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    }


@contextlib.contextmanager
def running_zone(release: int) -> Iterator[Zone]:
    """The zone of a release; one that runs already is used as it is and left running."""
    if shutil.which("radosgw") is None:
        _missing("Ceph is not installed: run scripts/setup")
    if (
        release != 16
        and subprocess.run([_DEV_CEPH.parent / "dev/ceph20-root", "--print"], capture_output=True).returncode
    ):
        _missing(f"Ceph {release} is not there: run scripts/setup --all")
    name = f"{os.environ.get('REMORA_TEST_ZONE', 'zone')}{release}"
    ran = subprocess.run([_DEV_CEPH, "status", "--name", name], capture_output=True, check=False).returncode == 0
    _dev_ceph("up", "--name", name, "--release", str(release))
    try:
        yield Zone(name, release, json.loads(_dev_ceph("env", "--json", "--name", name)))
    finally:
        if not ran:
            _dev_ceph("down", "--name", name)


def _missing(why: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def _dev_ceph(*arguments: str) -> str:
    done = subprocess.run([_DEV_CEPH, *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"dev-ceph {' '.join(arguments)} failed: {done.stderr[-3000:]}"
    return done.stdout


# -------------------------------------------------------------------------------- topics and buckets


def fresh(prefix: str) -> str:
    """A name that nothing has yet, for topics and buckets alike."""
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


async def create_topic(sns: Any, name: str, endpoint: str, **attributes: str) -> str:
    """Create a persistent topic, or change one of this name; returns its ARN. `_` in a name stands for a dash."""
    given = {"push-endpoint": endpoint, "persistent": "true"}
    given |= {each if each == "OpaqueData" else each.replace("_", "-"): text for each, text in attributes.items()}
    answer = await sns.create_topic(Name=name, Attributes=given)
    return str(answer["TopicArn"])


async def notify(s3: Any, bucket: str, arn: str, *events: str) -> None:
    """Create a bucket, unless it is there, whose events go to a topic; all events when none is named."""
    with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou):
        await s3.create_bucket(Bucket=bucket)
    chosen = list(events) or ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
    await s3.put_bucket_notification_configuration(
        Bucket=bucket,
        NotificationConfiguration={"TopicConfigurations": [{"Id": "n1", "TopicArn": arn, "Events": chosen}]},
    )
