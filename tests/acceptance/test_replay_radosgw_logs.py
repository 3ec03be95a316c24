"""What a real radosgw logs of S3 and of Swift is read as the writes that it did."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from devkit.clusters.s3 import User, Zone, fresh
from devkit.processes.ports import free_port
from devkit.waits import until
from remora_pipeline.replay.prepare.column_map import Mapping
from remora_pipeline.replay.prepare.entry import READ, Dropped, FormatContext, Write
from remora_pipeline.replay.prepare.formats import FORMATS, detect

pytestmark = [pytest.mark.ceph, pytest.mark.timeout(900)]

KEYS = ("plain", "deep/er/a b.csv", "plus+and%20", "ünïcödé-日本語", "q?m&partNumber=1&uploadId=2", "swift/v1/x/y", "-")
SWIFT_KEYS = ("plain", "deep/er/a b.csv", "plus+and%", "ünïcödé-日本語", "q?m&a=b")
PART_BYTES = 5 << 20
DEV_CEPH = Path(__file__).parents[2] / "scripts/dev-ceph"

Done = Counter[tuple[str, str, str]]
"""Operation, bucket and key of each write."""


def dev_ceph(zone: Zone, *command: str) -> list[str]:
    return [str(DEV_CEPH), "exec", "--name", zone.name, "--", *command]


@contextmanager
def logging_gateway(zone: Zone, log: Path, **options: str) -> Iterator[Zone]:
    """A second radosgw of a zone, which has an ops log; the zone as it is through that one."""
    port = free_port()
    config = {
        "rgw_frontends": f"beast endpoint=127.0.0.1:{port}",
        "rgw_enable_ops_log": "true",
        "rgw_ops_log_rados": "false",
        "rgw_ops_log_file_path": str(log),
        "admin_socket": "",
        "log_file": str(log.with_suffix(".radosgw")),
    } | options
    words = [word for name, value in config.items() for word in (f"--{name}", value)]
    conf = zone.env["conf"]
    radosgw = subprocess.Popen(
        dev_ceph(zone, "radosgw", "--foreground", "--conf", conf, "--name", "client.rgw", *words)
    )
    endpoint = f"http://127.0.0.1:{port}"
    try:
        yield replace(zone, env=zone.env | {"s3": zone.env["s3"] | {"endpoint": endpoint}})
    finally:
        radosgw.kill()
        radosgw.wait()


async def serves(zone: Zone) -> bool:
    def ask() -> bool:
        connection = http.client.HTTPConnection(urlsplit(zone.env["s3"]["endpoint"]).netloc, timeout=30)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status > 0
        except OSError:
            return False
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


class Swift:
    """A user of Swift, as its clients are."""

    def __init__(self, zone: Zone) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(zone.env["s3"]["endpoint"]).netloc, timeout=60)
        name, secret = f"{zone.env['s3']['user']}:{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        create = ("subuser", "create", f"--uid={zone.env['s3']['user']}", f"--subuser={name}", "--access=full")
        admin = dev_ceph(zone, "radosgw-admin", *create, "--key-type=swift", f"--secret-key={secret}")
        subprocess.run(admin, check=True, capture_output=True)
        login = self._send("GET", "/auth/v1.0", b"", {"X-Auth-User": name, "X-Auth-Key": secret})
        self._token = str(login.getheader("X-Auth-Token"))
        self.path = urlsplit(str(login.getheader("X-Storage-Url"))).path

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> None:
        """A request to the account, its container or object."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._send(method, self.path + path, body, named | {"X-Auth-Token": self._token})

    def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> http.client.HTTPResponse:
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status < 300, (method, path, answer.status, text)
        return answer


async def write_through_s3(user: User, bucket: str, done: Done) -> None:
    """Objects of every kind: plain, copied, in parts, copied parts among them, and deleted."""
    s3 = user.s3
    await s3.create_bucket(Bucket=bucket)
    for key in KEYS:
        await s3.put_object(Bucket=bucket, Key=key, Body=b"x" * 7)
        done["PUT", bucket, key] += 1
    await s3.copy_object(Bucket=bucket, Key="a copy", CopySource={"Bucket": bucket, "Key": "plain"})
    done["COPY", bucket, "a copy"] += 1
    await s3.put_object(Bucket=bucket, Key="large", Body=b"x" * PART_BYTES)
    done["PUT", bucket, "large"] += 1

    begun = await s3.create_multipart_upload(Bucket=bucket, Key="in parts +")
    mine = {"Bucket": bucket, "Key": "in parts +", "UploadId": begun["UploadId"]}
    source = {"Bucket": bucket, "Key": "large"}
    first = await s3.upload_part(**mine, PartNumber=1, Body=b"x" * PART_BYTES)
    whole = await s3.upload_part_copy(**mine, PartNumber=2, CopySource=source)
    some = await s3.upload_part_copy(**mine, PartNumber=3, CopySource=source, CopySourceRange="bytes=0-99")
    tags = [first["ETag"], whole["CopyPartResult"]["ETag"], some["CopyPartResult"]["ETag"]]
    parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, start=1)]
    await s3.complete_multipart_upload(**mine, MultipartUpload={"Parts": parts})
    done["MPU_COMPLETE", bucket, "in parts +"] += 1
    left = await s3.create_multipart_upload(Bucket=bucket, Key="given up")
    await s3.upload_part(Bucket=bucket, Key="given up", UploadId=left["UploadId"], PartNumber=1, Body=b"x")
    await s3.abort_multipart_upload(Bucket=bucket, Key="given up", UploadId=left["UploadId"])

    await s3.get_object(Bucket=bucket, Key="plain")
    await s3.delete_object(Bucket=bucket, Key="plus+and%20")
    done["DELETE", bucket, "plus+and%20"] += 1


def write_through_swift(swift: Swift, container: str, done: Done, *, tells_copies: bool) -> None:
    """The same through Swift, and what only Swift has."""
    swift.ask("PUT", f"/{container}")
    for key in SWIFT_KEYS:
        swift.ask("PUT", f"/{container}/{quote(key)}", b"x" * 7)
        done["PUT", container, key] += 1
    swift.ask("PUT", f"/{container}/copy%201", X_Copy_From=f"/{container}/plain")
    done["COPY", container, "copy 1"] += 1
    swift.ask("COPY", f"/{container}/plain", Destination=f"{container}/copy%202")
    if tells_copies:
        done["COPY", container, "copy 2"] += 1
    manifest = json.dumps([{"path": f"/{container}/plain"}]).encode()
    swift.ask("PUT", f"/{container}/slo?multipart-manifest=put", manifest)
    done["PUT", container, "slo"] += 1
    swift.ask("GET", f"/{container}/plain")
    swift.ask("POST", f"/{container}/plain", X_Object_Meta_A="1")
    swift.ask("DELETE", f"/{container}/{quote('ünïcödé-日本語')}")
    done["DELETE", container, "ünïcödé-日本語"] += 1


def read_as(name: str, data: bytes) -> tuple[Done, Counter[str]]:
    """The writes in a log, and the reasons why there are no others."""
    assert detect(data, "log", Mapping()).name == name
    outcomes = [each for found in FORMATS[name].records(BytesIO(data), FormatContext("log")) for each in found.outcomes]
    writes = Counter((each.op, each.bucket, each.key) for each in outcomes if isinstance(each, Write))
    return writes, Counter(each.reason for each in outcomes if isinstance(each, Dropped))


async def is_in(log: Path, text: str) -> bool:
    def look() -> bool:
        return log.exists() and text in log.read_text()

    return await asyncio.to_thread(look)


@pytest.mark.parametrize("account_in_url", ["false", "true"])
async def test_the_ops_log_of_both_protocols(zone: Zone, tmp_path: Path, account_in_url: str) -> None:
    """From a radosgw's ops log of S3 and Swift come exactly the writes that both did, with their buckets and keys.

    Before 20.2 a log does not tell where Swift's COPY wrote to, nor which key an upload by form has: those are counted.
    """
    log, bucket, container, done = tmp_path / "ops.log", fresh("s3"), fresh("swift"), Counter[Any]()
    with logging_gateway(zone, log, rgw_swift_account_in_url=account_in_url) as logged:
        await until(partial(serves, logged))
        async with logged.user() as user:
            await write_through_s3(user, bucket, done)
            if zone.release >= 20:  # release 16.2.15 crashes at a delete of several objects
                several = [{"Key": key} for key in ("plain", "deep/er/a b.csv")]
                await user.s3.delete_objects(Bucket=bucket, Delete={"Objects": several})
                done.update(("DELETE", bucket, each["Key"]) for each in several)
            tells_copies = zone.release >= 20
            with closing(await asyncio.to_thread(Swift, logged)) as swift:
                assert ("/AUTH_" in swift.path) == (account_in_url == "true")
                await asyncio.to_thread(write_through_swift, swift, container, done, tells_copies=tells_copies)
            await user.put(bucket, "the last one")
            done["PUT", bucket, "the last one"] += 1
        await until(partial(is_in, log, "the%20last%20one"))

    writes, reasons = read_as("rgw-ops", log.read_bytes())

    assert writes == done
    assert reasons["no event: a part of a multipart upload"] == 4
    assert reasons["a copy by Swift's COPY, whose new key is not in the log"] == (0 if tells_copies else 1)
    assert reasons[READ] >= 2
    assert not [reason for reason in reasons if reason.startswith("malformed")]


# ------------------------------------------------------------------------------------ bucket logging

LOGGED = """<BucketLoggingStatus xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><LoggingEnabled>
<TargetBucket>{to}</TargetBucket><TargetPrefix>of/</TargetPrefix><LoggingType>{kind}</LoggingType>
<ObjectRollTime>600</ObjectRollTime></LoggingEnabled></BucketLoggingStatus>"""


@asynccontextmanager
async def changed(user: User, operation: str, change: Callable[..., None]) -> AsyncIterator[None]:
    """Requests that no client library has: changed before they are signed."""
    events = user.s3.meta.events
    events.register(f"before-call.s3.{operation}", change)
    try:
        yield
    finally:
        events.unregister(f"before-call.s3.{operation}", change)


async def log_bucket(user: User, bucket: str, to: str, kind: str) -> None:
    """Have a bucket logged into another one, in one of radosgw's two formats."""
    principal = {"Service": "logging.s3.amazonaws.com"}
    allow = {"Effect": "Allow", "Principal": principal, "Action": "s3:PutObject", "Resource": f"arn:aws:s3:::{to}/*"}
    await user.s3.put_bucket_policy(Bucket=to, Policy=json.dumps({"Version": "2012-10-17", "Statement": [allow]}))

    def with_kind(params: dict[str, Any], **_: object) -> None:
        params["body"] = LOGGED.format(to=to, kind=kind).encode()
        params["headers"].pop("Content-MD5", None)

    async with changed(user, "PutBucketLogging", with_kind):
        await user.s3.put_bucket_logging(Bucket=bucket, BucketLoggingStatus={"LoggingEnabled": {}})


async def flushed(user: User, bucket: str, to: str) -> bytes:
    """What was logged, which radosgw writes when it is asked for."""

    def post(params: dict[str, Any], **_: object) -> None:
        params["method"] = "POST"

    async with changed(user, "GetBucketLogging", post):
        await user.s3.get_bucket_logging(Bucket=bucket)
    listed = await user.s3.list_objects_v2(Bucket=to)
    bodies = [await user.s3.get_object(Bucket=to, Key=each["Key"]) for each in listed["Contents"]]
    return b"".join([await each["Body"].read() for each in bodies])


@pytest.mark.parametrize(("kind", "name"), [("Journal", "rgw-journal"), ("Standard", "rgw-standard")])
async def test_bucket_logging_with_deletes_of_several_objects(zone20: Zone, kind: str, name: str) -> None:
    """From either format of bucket logging come exactly the writes, a DELETE for each of several objects among them.

    Keys are in these logs as they are, line breaks included. A copy is logged as a put.
    """
    bucket, to, done = fresh("logged"), fresh("logs"), Counter[Any]()
    keys = (
        *KEYS,
        "with  blanks ",
        'quo"te',
        "tab\there",
        "two\nlines",
        'x "PUT /y HTTP/1.1" 200 - 9 9 - 1ms - z',
        "[x] y",
    )
    async with zone20.user() as user:
        for each in (bucket, to):
            await user.s3.create_bucket(Bucket=each)
        await log_bucket(user, bucket, to, kind)
        await write_through_s3(user, bucket, done)
        for key in keys:
            await user.s3.put_object(Bucket=bucket, Key=key, Body=b"x" * 7)
            done["PUT", bucket, key] += 1
        several = [key for key in keys if key != "-"]  # which would look like the record of the request itself
        objects = [{"Key": key} for key in several]
        await user.s3.delete_objects(Bucket=bucket, Delete={"Objects": objects})
        done.update(("DELETE", bucket, key) for key in several)

        data = await flushed(user, bucket, to)

    done["PUT", bucket, "a copy"] = done.pop(("COPY", bucket, "a copy"))
    writes, reasons = read_as(name, data)
    assert writes == done
    assert reasons["no event: a request to delete several objects"] == (1 if kind == "Standard" else 0)
    assert not [reason for reason in reasons if reason.startswith("malformed")]
