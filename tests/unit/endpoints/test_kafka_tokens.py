"""Tokens that connections share, with a scripted server of tokens and on the virtual clock."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from devkit.clock import in_virtual_time
from remora.config import KafkaSettings
from remora.endpoints.kafka.bearer import GivenToken, HeldToken, TokenDesk, TokenDesks, TokenLogin
from remora.endpoints.kafka.target import Bearer
from remora.endpoints.tasks import CrashLog, Tasks
from remora.endpoints.tls import Trust
from remora.model.errors import EndpointError, EndpointMisconfigured, EndpointUnavailable
from remora.policy.delivery.destinations import DestinationRules
from remora.policy.delivery.tokens import TokenTimes

URL = "https://sso.example.org/token"
SETTINGS = KafkaSettings(token_endpoints=("https://sso.example.org/*",))


class Grants:
    """Answers after a second, with tokens of ten minutes by number, or with what was put in."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.failure: EndpointError | None = None

    async def __call__(self, login: TokenLogin) -> HeldToken:
        now = asyncio.get_running_loop().time
        self.asked.append(now())
        began = now()
        await asyncio.sleep(1)
        if self.failure is not None:
            raise self.failure
        return HeldToken(f"token-{len(self.asked)}", TokenTimes.of(began, 600), 600)


def login(secret: str = "s") -> TokenLogin:
    return TokenLogin(Bearer(URL, "remora", secret), Trust(verify=True))


@asynccontextmanager
async def desks_with(grants: Grants) -> AsyncIterator[TokenDesks]:
    async with Tasks(CrashLog()) as tasks:
        desks = TokenDesks(SETTINGS, tasks, DestinationRules(), grants, lambda: 0.999)
        yield desks
        desks.close()


@asynccontextmanager
async def desk_with(grants: Grants) -> AsyncIterator[TokenDesk]:
    async with desks_with(grants) as desks:
        yield desks.desk(login())


@in_virtual_time
async def test_one_asks_for_all() -> None:
    """Of those who need a token at once one asks, the others wait; later ones get the same token."""
    grants = Grants()
    async with desks_with(grants) as desks:
        first = await asyncio.gather(*(desks.desk(login()).token() for _ in range(20)))
        await asyncio.sleep(400)

        assert {*first, await desks.desk(login()).token()} == {"token-1"}
        assert await desks.desk(login("other")).token() == "token-2"
        assert len(grants.asked) == 2


@in_virtual_time
async def test_one_who_waits_goes_away() -> None:
    """One who asks and is cancelled takes the request from nobody else."""
    grants = Grants()
    async with desk_with(grants) as desk:
        gone, stays = (asyncio.create_task(desk.token()) for _ in range(2))
        await asyncio.sleep(0.5)
        gone.cancel()

        assert await stays == "token-1"
        assert len(grants.asked) == 1


@in_virtual_time
async def test_renewed_before_it_ends() -> None:
    """After four fifths of its life another token is asked for; while none is granted the former one serves to its end,
    and then the reason is given."""
    grants = Grants()
    async with desk_with(grants) as desk:
        assert await desk.token() == "token-1"
        await asyncio.sleep(480)
        assert await desk.token() == "token-2"
        grants.failure = EndpointUnavailable("away")
        await asyncio.sleep(590)
        assert await desk.token() == "token-2"
        await asyncio.sleep(70)
        with pytest.raises(EndpointUnavailable, match="away"):
            await desk.token()


@in_virtual_time
async def test_requests_that_fail_are_followed_by_pauses() -> None:
    """However often a token is needed, a server that grants none is asked at pauses that grow to a minute."""
    grants, began = Grants(), asyncio.get_running_loop().time()
    grants.failure = EndpointMisconfigured("it refuses the client")
    async with desk_with(grants) as desk:
        while asyncio.get_running_loop().time() < began + 600:
            with pytest.raises(EndpointMisconfigured, match="refuses the client"):
                await desk.token()
            await asyncio.sleep(0.1)
        pauses = [later - earlier for earlier, later in itertools.pairwise(grants.asked)]

        assert all(later > earlier - 0.2 for earlier, later in itertools.pairwise(pauses))
        assert 55 < pauses[-1] < 65
        assert len(pauses) < 17

        grants.failure = None
        await asyncio.sleep(70)
        assert (await desk.token()).startswith("token-")


@in_virtual_time
async def test_a_token_that_a_broker_refuses() -> None:
    """A token that a broker refuses is shown to none any more; the reason stands until another one is asked for."""
    grants = Grants()
    async with desk_with(grants) as desk:
        refused = await desk.token()
        desk.refuse(refused, EndpointMisconfigured("the broker refuses the token"))
        with pytest.raises(EndpointMisconfigured, match="the broker refuses"):
            await desk.token()
        await asyncio.sleep(2)

        assert await desk.token() == "token-2"
        desk.refuse(refused, EndpointMisconfigured("late"))
        assert await desk.token() == "token-2"


@in_virtual_time
async def test_a_url_that_the_operator_does_not_name() -> None:
    """There is no desk for a URL that the option does not name."""
    grants = Grants()
    async with desks_with(grants) as desks:
        with pytest.raises(EndpointMisconfigured, match=r"kafka\.token_endpoints"):
            desks.desk(TokenLogin(Bearer("https://evil.example/token", "c", "s"), Trust(verify=True)))

        assert grants.asked == []


def test_no_token_is_shown() -> None:
    """Neither a token nor a secret stands in what may come into a log."""
    held = HeldToken("abc-token", TokenTimes.of(0, 1), 1)

    assert "abc-token" not in repr(held) + repr(GivenToken(held))
    assert "hidden" not in repr(login("hidden"))
