"""Amazon's signature, version 4, of a request to a cluster's radosgw."""

from __future__ import annotations

import datetime
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any


def signed(
    method: str, path: str, host: str, env: Mapping[str, Any], extra: Mapping[str, str] | None = None, sub: str = ""
) -> dict[str, str]:
    """The headers of a request with Amazon's version 4 signature; its body is left out of it.

    `sub` is the subresource that the request is for, such as `notification`.
    """
    now = datetime.datetime.now(datetime.UTC)
    stamp, day, region = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d"), env["region"]
    headers = dict(extra or {}) | {"host": host, "x-amz-date": stamp, "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    request = f"{method}\n{path}\n{sub and f'{sub}='}\n{lines}\n{names}\nUNSIGNED-PAYLOAD"
    scope = f"{day}/{region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(request.encode('latin-1')).hexdigest()}"
    secret = f"AWS4{env['s3']['secret_key']}".encode()
    for part in (day, region, "s3", "aws4_request"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    signature = hmac.new(secret, text.encode(), "sha256").hexdigest()
    credential = f"{env['s3']['access_key']}/{scope}"
    return headers | {
        "Authorization": f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
    }
