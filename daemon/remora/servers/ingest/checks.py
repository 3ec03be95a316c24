"""What is checked of requests before their bodies are looked at, in the order in which it is checked."""

from __future__ import annotations

from remora.policy.browsers import is_of_page
from remora.servers.http.head import VERSIONS, Head
from remora.servers.ingest.desk import Desk
from remora.servers.ingest.limits import Receipt
from remora.servers.ingest.problems import BAD_REQUEST, CROSS_ORIGIN, RefusedRequest, stopping
from remora.servers.ingest.request_reader import BodyForm, form_of, idempotency_key

ONCE = ("Authorization", "Content-Encoding", "Content-Type", "Idempotency-Key")
"""Headers that may stand once: of several it would be open which one is meant, and a proxy may read another one."""


def check_any(desk: Desk, head: Head) -> None:
    """Let in a request of any kind. Raises Problem.

    A page comes first: it learns nothing here, not even what there is.
    """
    if is_of_page(head.headers.given(b"origin"), head.headers.given(b"sec-fetch-site")):
        raise RefusedRequest(CROSS_ORIGIN, "requests that a web page in a browser has sent are not taken")
    if desk.stopping:
        raise stopping()
    if head.version not in VERSIONS:
        raise RefusedRequest(BAD_REQUEST, f"expected HTTP/1.1, not HTTP/{head.version}")
    if head.headers.repeats:
        for name in ONCE:
            if len(head.headers.values(name.lower().encode())) > 1:
                raise RefusedRequest(BAD_REQUEST, f"{name}: stands more than once", field=name)


def check_publishing(desk: Desk, head: Head, topic: str) -> tuple[str, BodyForm, str]:
    """Let in a request to publish to a topic, whether there is one or not; raises Problem. It passed `check_any`.

    Gives the name of its token, the form that its body has, and its idempotency key.
    """
    token = desk.permit(head, topic)
    return token, form_of(head.headers), idempotency_key(head.headers)


def admit(desk: Desk, token: str, topic: str, nbytes: int) -> Receipt:
    """Charge a request with so many bytes to a topic that there is. Raises Problem where a limit is used up."""
    receipt = desk.limits.admit(token, topic)
    receipt.received(nbytes)
    return receipt
