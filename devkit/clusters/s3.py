"""A zone with its radosgw: S3 and SNS as its users have them, and requests that no client library would send."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import shutil
import subprocess
import urllib.parse
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import rados
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from devkit.clusters.ceph import Ceph, Gateway
from devkit.clusters.s3_signature import signed
from devkit.paths import SCRIPTS
from devkit.processes.daemon import PATIENT, Options, merged
from remora.codec.lock_ops import encode_break

_DEV_CEPH = SCRIPTS / "dev-ceph"
_CEPH20_ROOT = _DEV_CEPH.parent / "dev/ceph20-root"


@dataclass(frozen=True)
class Zone:
    """A running cluster with a radosgw, as `scripts/dev-ceph` made it."""

    name: str
    release: int
    env: dict[str, Any]

    @property
    def ceph(self) -> Ceph:
        """The cluster below; its administrator is the daemon's own user, whose key every librados can use."""
        return Ceph(self.name, self.env | {"admin_client": self.env["client"], "admin_keyring": self.env["keyring"]})

    @property
    def rados(self) -> dict[str, object]:
        """The `[rados]` section of a daemon with the permissions that an operator is told to give."""
        return {
            "conf": self.env["conf"], "name": self.env["client"], "keyring": self.env["keyring"],
            "mount_timeout": "60s",  # a command tries once
        }  # fmt: skip

    @property
    def sections(self) -> Options:
        """The configuration of a daemon that delivers this zone's queues, and takes in nothing itself."""
        return merged(PATIENT, {"store": {"kind": "rados"}, "ingest": {"listen": ""}, "rados": self.rados})

    def queue(self, topic: str) -> str:
        """The name of the queue of a topic without a tenant."""
        return topic if self.release < 19 else f":{topic}"

    def is_empty(self, queue: str) -> bool:
        """Whether nothing waits in a queue: its head says that front and tail are the same."""
        with self.ceph.client(namespace=self.env["queue_namespace"]) as ioctx:
            head = ioctx.read(queue, 68)
        assert head[:2] == b"\xad\xde", "no queue"
        return bool(head[24:46] == head[46:68])  # two markers behind magic, length, framing and head size

    @contextlib.contextmanager
    def locked(self, queue: str) -> Iterator[Callable[[], None]]:
        """Nobody delivers from a queue while this holds its lock; until the end, or until the function is called."""
        with self.ceph.client(namespace=self.env["queue_namespace"]) as ioctx:
            gateway = Gateway(ioctx)
            while not gateway.lock(queue, "test", 300):  # a radosgw was quicker
                for each in gateway.lockers(queue):
                    ioctx.execute(queue, "lock", "break_lock", encode_break(f"{queue}_lock", each.entity, each.cookie))

            def unlock() -> None:
                with contextlib.suppress(rados.ObjectNotFound):
                    ioctx.unlock(queue, f"{queue}_lock", "test")

            try:
                yield unlock
            finally:
                unlock()

    @contextlib.contextmanager
    def idle_radosgw(self) -> Iterator[None]:
        """A radosgw that does nothing at all, so that it takes no queue and no request either."""
        with self.ceph.frozen("rgw"):
            yield

    def owners(self, queue: str) -> list[str]:
        """The cookies in a queue's lock."""
        with self.ceph.client(namespace=self.env["queue_namespace"]) as ioctx:
            try:
                return [each.cookie for each in Gateway(ioctx).lockers(queue)]
            except rados.NoData:
                return []

    def exists(self, queue: str) -> bool:
        """Whether there is an object of this name among the queues."""
        with self.ceph.client(namespace=self.env["queue_namespace"]) as ioctx:
            return Gateway(ioctx).exists(queue)

    @contextlib.asynccontextmanager
    async def user(self) -> AsyncIterator[User]:
        """The zone's user, with its topics and buckets."""
        async with self._client("s3", s3={"addressing_style": "path"}) as s3, self._client("sns") as sns:
            # Release 16 takes passwords only over https, or from a proxy that says so.
            sns.meta.events.register("before-call", _say_https)
            user = User(self, s3, sns)
            try:
                yield user
            finally:
                await user.leave()

    async def notify(self, bucket: str, configurations: str) -> None:
        """Set a bucket's notifications, with the filters of metadata and tags that only radosgw has, as XML."""
        body = f"<NotificationConfiguration>{configurations}</NotificationConfiguration>".encode()
        path, host, sub = f"/{bucket}", self.env["s3"]["endpoint"].removeprefix("http://"), "notification"
        headers = signed("PUT", path, host, self.env, sub=sub)
        status = await asyncio.to_thread(_send, "PUT", f"{path}?{sub}", host, body, headers)
        assert status == 200, f"radosgw answers {status} to {configurations}"

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
        """One signed request for a key of any bytes; a header's characters are its bytes. The status code."""
        path = f"/{bucket}/{urllib.parse.quote(key, safe='/~')}"
        host = self.env["s3"]["endpoint"].removeprefix("http://")
        return await asyncio.to_thread(_send, method, path, host, body, signed(method, path, host, self.env, headers))


def _say_https(params: dict[str, Any], **_: object) -> None:
    params["headers"]["X-Forwarded-Proto"] = "https"


def _send(method: str, path: str, host: str, body: bytes, headers: Mapping[str, str]) -> int:
    """Unlike other clients, this one changes no byte of the path and adds no header that would have to be signed."""
    connection = http.client.HTTPConnection(host, timeout=30)
    try:
        connection.request(method, path, body, dict(headers))
        return connection.getresponse().status
    finally:
        connection.close()


class User:
    """Somebody with topics and buckets in a zone. The topics end with the user."""

    def __init__(self, zone: Zone, s3: Any, sns: Any) -> None:
        self.zone = zone
        self.s3 = s3
        self.sns = sns
        self._arns: set[str] = set()

    async def topic(self, name: str, endpoint: str, opaque: str = "", **arguments: str) -> str:
        """Create a persistent topic, or change the one of this name; `_` in an argument stands for a dash.

        Returns its ARN.
        """
        given = {"push-endpoint": endpoint, "persistent": "true", "OpaqueData": opaque}
        given |= {key.replace("_", "-"): text for key, text in arguments.items()}
        arn = str((await self.sns.create_topic(Name=name, Attributes=given))["TopicArn"])
        self._arns.add(arn)
        return arn

    async def set_attribute(self, arn: str, name: str, value: str) -> None:
        """Change one attribute of a topic; radosgw 20 can."""
        await self.sns.set_topic_attributes(TopicArn=arn, AttributeName=name, AttributeValue=value)

    async def drop_topic(self, arn: str) -> None:
        await self.sns.delete_topic(TopicArn=arn)
        self._arns.discard(arn)

    async def bucket(self, name: str, arn: str, *, versioned: bool = False) -> str:
        """Create a bucket, unless it is there, all of whose events go to a topic."""
        with contextlib.suppress(self.s3.exceptions.BucketAlreadyOwnedByYou):
            await self.s3.create_bucket(Bucket=name)
        if versioned:
            await self.s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        chosen = {"Id": "n1", "TopicArn": arn, "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]}
        await self.s3.put_bucket_notification_configuration(
            Bucket=name, NotificationConfiguration={"TopicConfigurations": [chosen]}
        )
        return name

    async def put(self, bucket: str, *keys: str) -> None:
        """One small object after the other."""
        for key in keys:
            await self.s3.put_object(Bucket=bucket, Key=key, Body=b"x")

    async def leave(self) -> None:
        for arn in tuple(self._arns):
            await self.drop_topic(arn)


def running_zone(release: int) -> Zone:
    """The zone of a release; made where it does not run, and left running for the next run."""
    if shutil.which("radosgw") is None:
        _missing("Ceph is not installed: run scripts/setup")
    if (
        release != 16
        and subprocess.run([_DEV_CEPH.parent / "dev/ceph20-root", "--print"], capture_output=True).returncode
    ):
        _missing(f"Ceph {release} is not there: run scripts/setup --all")
    name = f"zone{release}"
    _dev_ceph("up", "--name", name, "--release", str(release))
    return Zone(name, release, json.loads(_dev_ceph("env", "--json", "--name", name)))


@pytest.fixture(scope="session")
def zone16() -> Zone:
    """A radosgw 16.2."""
    return running_zone(16)


@pytest.fixture(scope="session")
def zone20() -> Zone:
    """A radosgw 20.2."""
    return running_zone(20)


@pytest.fixture(params=[16, 20], scope="session")
def zone(request: pytest.FixtureRequest) -> Zone:
    """Each of the releases in turn."""
    found: Zone = request.getfixturevalue(f"zone{request.param}")
    return found


def _missing(why: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


def _dev_ceph(*arguments: str) -> str:
    done = subprocess.run([_DEV_CEPH, *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"dev-ceph {' '.join(arguments)} failed: {done.stderr[-3000:]}"
    return done.stdout


def fresh(prefix: str) -> str:
    """A name that nothing has yet, for topics and buckets alike."""
    return f"{prefix}-{uuid.uuid4().hex[:10]}"
