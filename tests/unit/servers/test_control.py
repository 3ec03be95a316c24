"""Who may change a running daemon: over the control socket by its mode, over `admin.listen` by a token."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import aiohttp
import msgspec
import pytest

from remora.cli.admin_client import DaemonControl
from remora.config import AdminSettings, Settings, SupervisorSettings
from remora.model.caller import Caller
from remora.model.errors import ChangeNotAllowed, ConfigError, DaemonNotReachable
from remora.model.health import Health
from remora.process.sockets import control_sockets, listening_sockets
from remora.servers import control as control_module
from remora.servers import routes, tokens
from remora.servers.admin import Sources, serve_admin
from remora.servers.control import Control, TokenDoor, of_socket, routes_of
from remora.servers.routes import served
from remora.supervisor.shaping_changes import Change
from remora.supervisor.supervisor import Supervisor

SECURITY = (Path(__file__).parents[3] / "SECURITY.md").read_text()
ROUTES = re.findall(r"(?m)^\| `POST (\S+)` \|([^|]*)\|([^|]*)\|$", SECURITY)
"""Each route of the table, with who may over the control socket and over `admin.listen`."""

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root may")

ASK = """
import http.client, json, socket, sys

class Over(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)

def code(connection, route, headers):
    try:
        connection.request("POST", route, body=b"{}", headers=headers)
        return connection.getresponse().status
    except OSError as exc:
        return type(exc).__name__

port, path, token, *routes = sys.argv[1:]
headers = {"Host": "localhost", "Authorization": f"Bearer {token}"} if token else {"Host": "localhost"}
tcp = {each: code(http.client.HTTPConnection("127.0.0.1", int(port)), each, headers) for each in routes}
print(json.dumps({"tcp": tcp, "socket": {each: code(Over(path), each, {"Host": "localhost"}) for each in routes}}))
"""
"""Asks for each change, over TCP and over the control socket, and prints what came of it."""


@dataclass
class Changed:
    """Notes what was changed, and by whom."""

    drained: list[tuple[bool, Caller]] = field(default_factory=list)
    released: list[tuple[str | None, Caller]] = field(default_factory=list)
    reshaped: list[Caller] = field(default_factory=list)
    used: list[bytes] = field(default_factory=list)
    refused: list[tuple[str, Caller, str]] = field(default_factory=list)

    def reshape(self, body: bytes, caller: Caller) -> Sequence[str]:
        if msgspec.json.decode(body).get("scope"):
            raise ConfigError("shaping.scope", "there is no such scope")
        self.reshaped.append(caller)
        return ["changed"]

    def use_store(self, body: bytes) -> float | None:
        self.used.append(body)
        return 0.25 if b"idle" in body else None

    @property
    def control(self) -> Control:
        return Control(
            lambda on, caller: self.drained.append((on, caller)),
            lambda destination, caller: self.released.append((destination, caller)),
            self.reshape,
            self.use_store,
            lambda *refusal: self.refused.append(refusal),
        )

    @property
    def callers(self) -> list[Caller]:
        """Of all that was changed."""
        return [*(who for _, who in self.drained), *(who for _, who in self.released), *self.reshaped]


async def _unasked(*_: object) -> NoReturn:
    raise AssertionError("only changes are asked for")


SOURCES = Sources(lambda: Health(True), _unasked, _unasked, _unasked)


@dataclass
class Site:
    """A control and an admin server, and the settings that lead to them."""

    settings: Settings
    changed: Changed

    @property
    def port(self) -> int:
        return int(self.settings.admin.listen.rpartition(":")[2])

    async def post(self, path: str, **headers: str) -> tuple[int, str]:
        """The status code of a POST over TCP, and the reason."""
        url = f"http://{self.settings.admin.listen}{path}"
        async with aiohttp.ClientSession() as session, session.post(url, headers=headers) as reply:
            return reply.status, " ".join((await reply.json()).get("reasons", ()))


@asynccontextmanager
async def site(folder: Path, **admin: str) -> AsyncIterator[Site]:
    """Both servers, with these options of `[admin]`."""
    changed, stack = Changed(), ExitStack()
    with stack:
        tcp = stack.enter_context(listening_sockets("admin.listen", "127.0.0.1:0", 0o600))
        listen = f"127.0.0.1:{tcp[0].getsockname()[1]}"
        settings = Settings(
            admin=AdminSettings(listen=listen, **admin),  # type: ignore[arg-type]  # texts, as these options are
            supervisor=SupervisorSettings(run_directory=str(folder)),
        )
        unix = stack.enter_context(control_sockets(settings, lambda *why: pytest.fail(f"unavailable: {why}")))
        door = TokenDoor(settings.admin.control_tokens, settings.control_socket)
        async with (
            serve_admin(tcp, SOURCES, routes_of(changed.control, door)),
            served(routes_of(changed.control, of_socket), unix),
        ):
            yield Site(settings, changed)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A run directory that every user may look into, as systemd makes it."""
    with tempfile.TemporaryDirectory(prefix="remora-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture
def token(folder: Path) -> str:
    """A control token, of the operator ada; the file of its digest is `control-tokens` in the folder."""
    made = tokens.new_token()
    (folder / "control-tokens").write_text(tokens.line_of("ada", made, "*") + "\n")
    (folder / "control-tokens").chmod(0o600)
    return made


async def asked_by(uid: int, gid: int, there: Site, token: str = "") -> dict[str, dict[str, object]]:
    """What a process of this user and group got for each route of the table, over TCP and over the socket."""
    routes = [route for route, *_ in ROUTES]
    # Not the virtual environment's interpreter, whose folder another user may not be able to enter.
    interpreter = getattr(sys, "_base_executable", sys.executable)
    done = await asyncio.to_thread(
        subprocess.run,
        [interpreter, "-I", "-S", "-c", ASK, str(there.port), there.settings.control_socket, token, *routes],
        user=uid, group=gid, extra_groups=[], cwd="/", env={}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, dict[str, object]] = json.loads(done.stdout)
    return answer


@contextmanager
def as_nobody() -> Iterator[None]:
    """This process, without a right that root has, while the block runs."""
    groups, gid = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)


# --------------------------------------------------------------------------------- the table of SECURITY.md


def test_the_table_of_security_names_every_route() -> None:
    """Each route that changes something has its row in SECURITY.md, and no other has."""
    served = [each.path for each in routes_of(Changed().control, of_socket)]

    assert sorted(route for route, *_ in ROUTES) == sorted(served)
    assert {over_socket.strip() for _, over_socket, _ in ROUTES} == {"root, the daemon's user, members of its group"}
    assert {over_tcp.strip() for *_, over_tcp in ROUTES} == {"holders of a control token; nobody without such tokens"}


@as_root
async def test_another_user_changes_nothing(folder: Path) -> None:
    """A user who is neither root nor the daemon's nor in its group is refused each change over TCP and the socket."""
    async with site(folder) as there:
        answers = await asked_by(NOBODY, NOBODY, there)

    assert set(answers["tcp"].values()) == {403}
    assert set(answers["socket"].values()) == {"PermissionError"}
    assert there.changed.callers == []
    assert [route for route, *_ in there.changed.refused] == [route for route, *_ in ROUTES]


@as_root
async def test_a_member_of_the_daemons_group_changes_all_over_the_socket(folder: Path) -> None:
    """The group may use the socket, is known to the daemon by the kernel's word, and gains nothing over TCP. Who uses
    the store is charged and not named."""
    async with site(folder) as there:
        answers = await asked_by(NOBODY, os.getegid(), there)

    assert set(answers["tcp"].values()) == {403}
    assert set(answers["socket"].values()) == {200}
    assert len(there.changed.callers) == len(ROUTES) - len(there.changed.used) == len(ROUTES) - 1
    assert {each.uid for each in there.changed.callers} == {NOBODY}
    assert all(each.pid not in (None, 0, os.getpid()) for each in there.changed.callers)


@as_root
async def test_a_holder_of_a_token_changes_all_over_tcp(folder: Path, token: str) -> None:
    """With a control token any user of the host may, and is known by the token's name."""
    async with site(folder, control_tokens=str(folder / "control-tokens")) as there:
        answers = await asked_by(NOBODY, NOBODY, there, token)

    assert set(answers["tcp"].values()) == {200}
    assert set(answers["socket"].values()) == {"PermissionError"}
    assert set(there.changed.callers) == {Caller(token="ada", address="127.0.0.1")}


@as_root
async def test_a_socket_of_mode_0600_is_the_users_alone(folder: Path) -> None:
    """Where members of the group shall send events and change nothing, admin.control_mode keeps them out."""
    async with site(folder, control_mode="0600") as there:
        answers = await asked_by(NOBODY, os.getegid(), there)

    assert set(answers["socket"].values()) == {"PermissionError"}


# --------------------------------------------------------------------------------------------------- over TCP


async def test_a_refusal_names_the_socket_and_the_option(folder: Path) -> None:
    """Who asks over TCP as before reads where changes are asked for now."""
    async with site(folder) as there:
        code, reason = await there.post("/-/drain")

    assert code == 403
    assert f"{folder}/control.sock" in reason
    assert "admin.control_tokens" in reason


@pytest.mark.parametrize("wrong", ["", "Basic {}", "Bearer x{}", "Bearer", "{}"])
async def test_a_token_that_is_none_is_refused(folder: Path, token: str, wrong: str) -> None:
    """A change without the token, with another one, or by another scheme is refused."""
    async with site(folder, control_tokens=str(folder / "control-tokens")) as there:
        headers = {"Authorization": wrong.format(token)} if wrong else {}
        code, reason = await there.post("/-/drain", **headers)

    assert (code, there.changed.drained) == (403, [])
    assert "token" in reason


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://elsewhere.example"},
        {"Sec-Fetch-Site": "same-origin"},
        *({"Host": each} for each in ("evil.example", "evil.example:9750", "localhost.evil.example", "0.0.0.0:9750")),
        *({"Host": each} for each in ("192.0.2.1", "[::2]:9750")),
    ],
)
async def test_no_web_page_changes_anything(folder: Path, token: str, headers: dict[str, str]) -> None:
    """A page of a browser is refused though it has a token, also under a name that means 127.0.0.1 by now."""
    async with site(folder, control_tokens=str(folder / "control-tokens")) as there:
        code, _ = await there.post("/-/drain", Authorization=f"Bearer {token}", **headers)

    assert (code, there.changed.drained) == (403, [])


@pytest.mark.parametrize("host", ["localhost", "LocalHost:1", "127.0.0.1:9750", "127.1.2.3", "[::1]", "[::1]:9750"])
async def test_a_token_opens_under_any_name_of_the_loopback(folder: Path, token: str, host: str) -> None:
    """Whatever the port is, which may be a tunnel's."""
    async with site(folder, control_tokens=str(folder / "control-tokens")) as there:
        assert await there.post("/-/drain", Authorization=f"bearer {token}", Host=host) == (200, "")


async def test_a_token_from_elsewhere_is_refused(folder: Path, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that came over another address than the loopback's opens nothing: it was read on its way."""
    async with site(folder, control_tokens=str(folder / "control-tokens")) as there:
        monkeypatch.setattr(control_module, "_peer", lambda _: ("192.0.2.1", 1234))

        assert (await there.post("/-/drain", Authorization=f"Bearer {token}"))[0] == 403
    assert there.changed.drained == []


async def test_a_token_that_is_taken_out_opens_no_longer(folder: Path, token: str) -> None:
    """The file is looked at for each change; one that others may read, or that is gone, lets nobody in."""
    file = folder / "control-tokens"
    async with site(folder, control_tokens=str(file)) as there:
        codes = [(await there.post("/-/drain", Authorization=f"Bearer {token}"))[0]]
        file.chmod(0o644)
        codes.append((await there.post("/-/drain", Authorization=f"Bearer {token}"))[0])
        file.chmod(0o600)
        file.write_text("")
        codes.append((await there.post("/-/drain", Authorization=f"Bearer {token}"))[0])
        file.unlink()
        codes.append((await there.post("/-/drain", Authorization=f"Bearer {token}"))[0])

    assert codes == [200, 403, 403, 403]


@pytest.mark.parametrize(
    ("head", "body", "statuses"),
    [
        (b"Content-Length: 2\r\n", b"{}", [200]),
        (b"Transfer-Encoding: chunked\r\n", b"2\r\n{}\r\n0\r\n\r\n", [200]),
        (b"Expect: 100-continue\r\nContent-Length: 2\r\n", b"{}", [100, 200]),
        (b"Content-Length: %d\r\n" % (routes.MOST_BODY + 1), b" " * (routes.MOST_BODY + 1), [413]),
        (b"Transfer-Encoding: chunked\r\n", b"no chunk\r\n", [400]),
    ],
    ids=["length", "chunks", "expect", "too-long", "no-chunk"],
)
async def test_a_body_comes_in_every_form_and_is_bounded(
    folder: Path, head: bytes, body: bytes, statuses: list[int]
) -> None:
    """With a length or in chunks, and of a MiB at the most; who asks whether to send it is told so."""
    async with site(folder) as there:
        reader, writer = await asyncio.open_unix_connection(there.settings.control_socket)
        writer.write(b"POST /-/shaping HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n")
        writer.write(body)
        answered = await reader.read()
        writer.close()

    assert [int(each) for each in re.findall(rb"HTTP/1\.1 (\d+)", answered)] == statuses
    assert len(there.changed.reshaped) == statuses.count(200)


async def test_a_destination_is_released_by_its_name(folder: Path) -> None:
    """The first parameter of the name counts, decoded; without one all are released."""
    async with site(folder, control_tokens="") as there:
        for query in (b"", b"?other=1", b"?destination=kafka%3A%2F%2Fa+b&destination=c"):
            reader, writer = await asyncio.open_unix_connection(there.settings.control_socket)
            writer.write(b"POST /-/release%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % query)
            assert b" 200 " in await reader.read()
            writer.close()

    assert [destination for destination, _ in there.changed.released] == [None, None, "kafka://a b"]


def test_a_token_for_some_topics_is_no_control_token(tmp_path: Path) -> None:
    """A line that limits a token to topics is a sender's, and is refused where it would change the daemon."""
    file = tmp_path / "tokens"
    file.write_text(tokens.line_of("gateway", tokens.new_token(), "orders") + "\n")
    file.chmod(0o600)

    with pytest.raises(ConfigError, match=r"^admin\.control_tokens: .*, line 1: a token for some topics"):
        tokens.load(str(file), tokens.CONTROL)


async def test_a_file_of_tokens_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    """It is refused before any worker is started, rather than at the first command."""
    settings = Settings(admin=AdminSettings(control_tokens=str(tmp_path / "none")))

    with pytest.raises(ConfigError, match=r"^admin\.control_tokens: cannot read .*: No such file"):
        await Supervisor(settings, None, lambda _: pytest.fail("a worker was started")).run()


# --------------------------------------------------------------------------------------------- the commands


async def test_commands_ask_over_the_socket(folder: Path) -> None:
    """A drain, its end, a release, a change of shaping and uses of the store reach the daemon, which knows who asks."""
    async with site(folder) as there:
        daemon = DaemonControl(there.settings)
        await daemon.drain(True)
        await daemon.drain(False)
        await daemon.release("kafka://b:9092,c:9092")
        await daemon.release(None)
        lines = await daemon.reshape(Change())
        waits = [await daemon.use_store("idle", 5), await daemon.use_store("background", 7)]
        with pytest.raises(ConfigError, match="no such scope"):
            await daemon.reshape(Change(scope="x"))

    assert [on for on, _ in there.changed.drained] == [True, False]
    assert [each for each, _ in there.changed.released] == ["kafka://b:9092,c:9092", None]
    assert lines == ["changed"]
    assert waits == [0.25, None]
    assert there.changed.used == [b'{"priority":"idle","nbytes":5}', b'{"priority":"background","nbytes":7}']
    assert set(there.changed.callers) == {Caller(uid=os.geteuid(), pid=os.getpid())}


async def test_a_command_with_a_token_asks_over_the_admin_address(folder: Path, token: str) -> None:
    """A token in a file goes to admin.listen, and a wrong one is a refusal in words."""
    (folder / "mine").write_text(f"{token}\n")
    (folder / "other").write_text("rmr_x")
    async with site(folder, control_tokens=str(folder / "control-tokens")) as there:
        await DaemonControl(there.settings, folder / "mine").drain(True)
        with pytest.raises(ChangeNotAllowed, match=r"need a token of the file admin\.control_tokens"):
            await DaemonControl(there.settings, folder / "other").drain(True)

    assert there.changed.drained == [(True, Caller(token="ada", address="127.0.0.1"))]


@as_root
async def test_a_user_who_may_not_reads_who_may(folder: Path) -> None:
    """The command of a user whom the socket keeps out ends with a line that names the socket and who may use it."""
    async with site(folder) as there:
        with (
            as_nobody(),
            pytest.raises(ChangeNotAllowed, match=r"only root, .* its group may use unix:.*/control\.sock"),
        ):
            await DaemonControl(there.settings).drain(True)


async def test_no_daemon_is_no_refusal(folder: Path) -> None:
    """Where no daemon runs a command names the socket and its option."""
    settings = Settings(supervisor=SupervisorSettings(run_directory=str(folder)))

    with pytest.raises(DaemonNotReachable, match=r"unix:.*/control\.sock \(admin\.control_socket\): No such file"):
        await DaemonControl(settings).drain(True)


# ----------------------------------------------------------------------------------------------- the socket


def settings_in(folder: Path, path: str = "") -> Settings:
    """Those of a daemon with this run directory."""
    return Settings(admin=AdminSettings(control_socket=path), supervisor=SupervisorSettings(run_directory=str(folder)))


def unexpected(*why: str) -> None:
    raise AssertionError(why)


def test_the_socket_of_a_live_daemon_is_left_alone(tmp_path: Path) -> None:
    """A second daemon of one run directory is refused with the option's name, and runs with a socket of its own."""
    refused = r"^admin\.control_socket: .*: another process listens there"
    with control_sockets(settings_in(tmp_path), unexpected) as (first,):
        with pytest.raises(ConfigError, match=refused), control_sockets(settings_in(tmp_path), unexpected):
            pass
        own = str(tmp_path / "other.sock")
        with control_sockets(settings_in(tmp_path, own), unexpected) as (second,):
            assert (first.getsockname(), second.getsockname()) == (str(tmp_path / "control.sock"), own)


def test_the_socket_of_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    """What a killed daemon has left is no obstacle, and the new socket has the mode of the option."""
    path = tmp_path / "control.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    path.chmod(0o777)

    with control_sockets(settings_in(tmp_path), unexpected):
        assert path.stat().st_mode & 0o777 == 0o660
    assert not path.exists()


def test_the_run_directory_is_made_for_the_group(tmp_path: Path) -> None:
    """Where nobody has made the run directory the daemon does, so that its group can reach the socket."""
    folder, before = tmp_path / "run" / "remora", os.umask(0o077)
    try:
        with control_sockets(settings_in(folder), unexpected):
            assert folder.stat().st_mode & 0o777 == 0o750
    finally:
        os.umask(before)


def test_a_daemon_without_a_place_for_its_socket_runs(tmp_path: Path) -> None:
    """A run directory that cannot be made, or whose path is too long, is reported, and costs the socket alone."""
    (tmp_path / "file").touch()
    for folder, why in ((tmp_path / "file" / "run", "Not a directory"), (tmp_path / ("x" * 100), "path too long")):
        said: list[tuple[str, str]] = []
        with control_sockets(settings_in(folder), lambda *each, said=said: said.append(each)) as found:
            assert found == []
        ((path, reason),) = said
        assert path == f"{folder}/control.sock"
        assert why in reason


def test_a_socket_that_is_configured_has_to_be_possible(tmp_path: Path) -> None:
    """Where the option names a path that cannot be used the daemon does not start."""
    settings, refused = settings_in(tmp_path, f"{tmp_path}/none/c.sock"), r"^admin\.control_socket: .*: No such file"
    with pytest.raises(ConfigError, match=refused), control_sockets(settings, unexpected):
        pass
