"""The unit and the image: what they promise to operators, checked where neither can be run."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from devkit.entries.entries import delivered
from devkit.processes.programs import program
from remora.cli import group
from remora.config import Settings, SqliteSettings, parse_duration
from remora.model.exits import Exit
from remora.storage.sqlite import SqliteStore
from remora_pipeline.replay.errors import ReplayError
from support.sqlite import append
from support.stores import held, own_topic

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "systemd" / "remora.service"
SEQUENCER_UNIT = ROOT / "systemd" / "remora-sequencer.service"
LAND_UNIT = ROOT / "systemd" / "remora-land.service"
LAND_TIMER = LAND_UNIT.with_suffix(".timer")
UNITS = pytest.mark.parametrize("unit", [UNIT, SEQUENCER_UNIT, LAND_UNIT], ids=lambda unit: unit.stem)
SYSUSERS = ROOT / "systemd" / "remora.sysusers"
INSTALLED = "/opt/remora/bin/remora"

# ------------------------------------------------------------------------------------------------- unit


def unit_options(unit: Path = UNIT) -> dict[str, list[str]]:
    """Every option of a unit with its values, in order."""
    options: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            options.setdefault(key, []).append(value)
    return options


@UNITS
def test_systemd_accepts_the_unit(tmp_path: Path, unit: Path) -> None:
    """The unit is clean. A copy is checked that names a program which exists here: systemd looks for it."""
    command = Path(sys.executable).with_name("remora")
    assert command.exists(), "the package is not installed beside this Python"
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(INSTALLED, str(command)))

    done = subprocess.run(
        [program("systemd-analyze", "systemd"), "verify", "--man=no", str(copy)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_directory_on_another_disk_takes_the_drop_in_of_the_docs(tmp_path: Path) -> None:
    """The lines of docs/directories.md are those of the unit's own comment, and systemd accepts them."""
    block = re.search(r"```ini\n(.*?)```", (ROOT / "docs/directories.md").read_text(), re.DOTALL)
    assert block is not None
    lines = [line.strip() for line in block[1].splitlines() if line.strip()]
    assert "".join(f"#   {line}\n" for line in lines) in UNIT.read_text()
    (tmp_path / UNIT.name).write_text(UNIT.read_text().replace(INSTALLED, sys.executable))
    (tmp_path / f"{UNIT.name}.d").mkdir()
    (tmp_path / f"{UNIT.name}.d" / "override.conf").write_text("\n".join(lines))

    done = subprocess.run(
        [program("systemd-analyze", "systemd"), "verify", "--man=no", str(tmp_path / UNIT.name)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {"ReadWritePaths", "RequiresMountsFor"} <= {line.partition("=")[0] for line in lines}


@UNITS
def test_the_unit_exposes_little(unit: Path) -> None:
    """The exposure that systemd computes is 2.0 or less, of 10."""
    done = subprocess.run(
        [program("systemd-analyze", "systemd"), "security", "--offline=true", "--threshold=20", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Overall exposure level for " + re.escape(unit.name) + r": (?:[01]\.[0-9]|2\.0) ", done.stdout)


def test_the_sequencers_unit_shares_the_hardening_and_no_runtime_directory() -> None:
    """Each unit has a runtime directory of its own, since systemd removes it when the unit stops; the rest of the
    hardening is the same, line by line."""
    daemons, sequencers, defaults = unit_options(), unit_options(SEQUENCER_UNIT), Settings()

    assert daemons["RuntimeDirectory"] != sequencers["RuntimeDirectory"]
    assert defaults.sequencer.listen.startswith(f"unix:/run/{sequencers['RuntimeDirectory'][0]}/")
    assert sequencers["ExecStart"] == [f"{INSTALLED} sequencer -c /etc/remora/remora.toml"]
    assert sequencers["RestartPreventExitStatus"] == daemons["RestartPreventExitStatus"]
    assert (sequencers["User"], sequencers["StateDirectory"]) == (daemons["User"], daemons["StateDirectory"])
    begin = "CapabilityBoundingSet="
    assert UNIT.read_text().partition(begin)[2] == SEQUENCER_UNIT.read_text().partition(begin)[2]


def test_the_landings_unit_is_hardened_as_the_daemons_but_for_javas_code() -> None:
    """Every line of the daemon's hardening is there but the one that Java cannot run under."""
    begin, denied = "CapabilityBoundingSet=", "MemoryDenyWriteExecute=yes\n"
    daemons = UNIT.read_text().partition(begin)[2].partition("\n[Install]")[0]

    assert denied in daemons
    assert LAND_UNIT.read_text().partition(begin)[2] == daemons.replace(denied, "")


def test_the_landings_unit_runs_commands_that_there_are(tmp_path: Path) -> None:
    """Both commands take what the unit's own example of its file says, up to the catalog, which is not there."""
    text = LAND_UNIT.read_text()
    catalog = f"jdbc:sqlite:{tmp_path}/none/catalog.db"
    said = {
        key: value.replace("https://catalog/", catalog).replace("broker:9092", "127.0.0.1:9")
        for key, value in re.findall(r"^#   ([A-Z]+)=(.*)$", text, re.MULTILINE)
    }
    commands = unit_options(LAND_UNIT)["ExecStart"]
    assert len(commands) == len(said) == 2
    for command in commands:
        program_, *words = command.split()
        asked = [part for word in words for part in (said[word[1:]].split() if word[0] == "$" else [word])]
        result = CliRunner().invoke(group, [*asked, "--dry-run"])

        assert program_ == INSTALLED
        assert result.exit_code == 1, result.output
        assert isinstance(result.exception, ReplayError), result.output


def test_systemd_accepts_the_timer(tmp_path: Path) -> None:
    """The timer is clean, and starts the unit of its name."""
    command = Path(sys.executable).with_name("remora")
    (tmp_path / LAND_UNIT.name).write_text(LAND_UNIT.read_text().replace(INSTALLED, str(command)))
    (tmp_path / LAND_TIMER.name).write_text(LAND_TIMER.read_text())

    done = subprocess.run(
        [program("systemd-analyze", "systemd"), "verify", "--man=no", str(tmp_path / LAND_TIMER.name)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_unit_checks_the_file_that_it_runs_with() -> None:
    """The configuration is checked before every start, with the same file and program as the daemon's."""
    options = unit_options()

    assert options["ExecStartPre"] == [f"{INSTALLED} check-config -c /etc/remora/remora.toml"]
    assert options["ExecStart"] == [f"{INSTALLED} run -c /etc/remora/remora.toml"]
    assert options["Type"] == ["notify"]
    assert options["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_the_unit_gives_a_drain_its_time() -> None:
    """systemd waits longer than a drain and the releases after it may take by default."""
    defaults = Settings()

    stop = parse_duration(unit_options()["TimeoutStopSec"][0] + "s")

    assert stop > defaults.delivery.drain_timeout_s + 2 * defaults.ownership.release_timeout_s


def test_the_unit_restarts_only_where_that_may_help() -> None:
    """A refused configuration and a missing permission end the service; everything else starts anew."""
    options = unit_options()

    assert options["Restart"] == ["on-failure"]
    assert options["RestartPreventExitStatus"] == [f"{Exit.NO_PERMISSION.value} {Exit.CONFIG.value}"]


def test_the_units_user_owns_where_the_daemon_writes() -> None:
    """systemd makes the default folders of queues and sockets, the former for the user alone, and the user is made; and
    the daemon knows other users apart, which may give it commands there."""
    options, defaults = unit_options(), Settings()

    assert defaults.sqlite.directory == f"/var/lib/{options['StateDirectory'][0]}"
    assert options["StateDirectoryMode"] == ["0700"]
    assert defaults.ingest.listen.startswith(f"unix:/run/{options['RuntimeDirectory'][0]}/")
    assert defaults.control_socket.startswith(f"/run/{options['RuntimeDirectory'][0]}/")
    assert "PrivateUsers" not in options, "it would not know who gives it a command"
    (user,) = [line for line in SYSUSERS.read_text().splitlines() if not line.startswith("#")]
    kind, name, number, *_, home = shlex.split(user)
    assert (kind, [name], number, home) == ("u", options["User"], "-", defaults.sqlite.directory)
    assert options["Group"] == options["User"]
    assert "DynamicUser" not in options


def test_the_daemons_libraries_work_without_writable_code() -> None:
    """MemoryDenyWriteExecute= costs nothing: every compiled library loads and ctypes calls back under it."""
    script = """
import ctypes, sys
libc = ctypes.CDLL(None)
PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
if libc.prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0):
    sys.exit(42)
import aiohttp, aiokafka, cramjam, msgspec, sqlite3, ssl, uvloop
sqlite3.connect(":memory:").execute("SELECT 1")
ssl.create_default_context()
cramjam.snappy.compress_raw(b"x" * 1000)
compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
numbers = (ctypes.c_int * 3)(3, 1, 2)
libc.qsort(numbers, 3, 4, compare(lambda a, b: a[0] - b[0]))
assert list(numbers) == [1, 2, 3]
async def nothing(): pass
uvloop.run(nothing())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    if done.returncode == 42:
        pytest.skip("needs Linux 6.3: the kernel cannot refuse executable memory to a process")
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------ image


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    joined = re.sub(r"\\\n\s*", " ", text)
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def stage(name: str) -> list[tuple[str, str]]:
    """The instructions of a stage."""
    found = instructions()
    first = found.index(("FROM", f"debian:${{DEBIAN_RELEASE}}-slim AS {name}"))
    return list(itertools.takewhile(lambda each: each[0] != "FROM", found[first + 1 :]))


def arguments(name: str, of: str = "daemon") -> list[str]:
    """What one kind of instruction says in a stage."""
    return [argument for each, argument in stage(of) if each == name]


def debian_packages(of: str) -> set[str]:
    """What a stage installs first."""
    return set(shlex.split(arguments("RUN", of)[0].partition("--no-install-recommends")[2].partition("&&")[0]))


def test_every_instruction_of_the_image_is_one() -> None:
    """Nothing in the Dockerfile is misspelt or lost its continuation."""
    known = {"ARG", "FROM", "RUN", "COPY", "WORKDIR", "LABEL", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK",
             "ENTRYPOINT", "CMD", "VOLUME"}  # fmt: skip

    assert {name for name, _ in instructions()} <= known


def test_every_build_argument_is_used() -> None:
    """The Debian release decides each stage, so that the copied environment fits its Python. A build without a target
    gives the daemon."""
    found = instructions()
    declared = {argument.partition("=")[0] for name, argument in found if name == "ARG"}
    bases = [argument.split()[0] for name, argument in found if name == "FROM"]

    assert declared == {"DEBIAN_RELEASE", "CEPH_PACKAGES", "KERBEROS_PACKAGES"}
    debian = "debian:${DEBIAN_RELEASE}-slim"
    assert bases == [debian, debian, "build", debian, "daemon"]
    assert {"CEPH_PACKAGES", "KERBEROS_PACKAGES"} <= set(arguments("ARG")), "a stage must say so to know it"


@pytest.mark.parametrize("of", ["daemon", "pipeline"])
def test_the_image_runs_as_nobody_in_particular(of: str) -> None:
    """The user is a number other than root's, which an orchestrator can check."""
    (user,) = arguments("USER", of)

    assert re.fullmatch(r"[1-9][0-9]+:[1-9][0-9]+", user)


def test_the_image_starts_the_daemon_without_a_shell() -> None:
    """Entry point, command and health check are in exec form, and the daemon gets SIGTERM itself."""
    (entry,), (command,), (check,) = arguments("ENTRYPOINT"), arguments("CMD"), arguments("HEALTHCHECK")

    assert json.loads(entry) == [INSTALLED]
    assert json.loads(command) == ["run", "-c", "/etc/remora/remora.toml"]
    assert arguments("STOPSIGNAL") == ["SIGTERM"]
    program_, option, script = json.loads(check.partition("CMD ")[2])
    assert (program_, option) == ("/opt/remora/bin/python", "-c")
    compile(script, "healthcheck", "exec")
    assert f"http://{Settings().admin.listen}/-/live" in script


def test_the_image_of_the_pipeline_has_java_and_spark_and_no_build_tools() -> None:
    """It starts the command line without a shell, has a Java's runtime, and brings Spark's connector along."""
    (entry,), (command,) = arguments("ENTRYPOINT", "pipeline"), arguments("CMD", "pipeline")

    assert debian_packages("pipeline") == {"ca-certificates", "default-jre-headless", "procps", "python3"}
    assert (json.loads(entry), json.loads(command)) == ([INSTALLED], ["pipeline", "--help"])
    (jars,) = [each for each in arguments("COPY", "pipeline") if each.startswith("--from=spark-jars")]
    assert f"REMORA_SPARK_JARS={jars.split()[-1].rstrip('/')}" in arguments("ENV", "pipeline")[0].split()


def test_the_pipeline_is_in_its_own_image_alone() -> None:
    """Its package and what that needs are installed behind the daemon's, in a stage that the daemon's image has not."""
    (wheel,) = [each for each in arguments("RUN", "build") if "pip wheel" in each]
    found = instructions()
    first = found.index(("FROM", "build AS pipeline-build"))
    (behind,) = [argument for name, argument in found[first:] if name == "RUN" and "pip wheel" in argument]

    assert "./pipeline" not in wheel
    assert "pip wheel --no-deps --wheel-dir /pipeline-wheel ./pipeline" in behind
    assert "--no-deps --no-index /pipeline-wheel/*.whl" in behind


def test_the_pipelines_package_needs_the_daemons_of_its_version_and_a_java() -> None:
    """It has neither interpreter nor command of its own, brings the units of the landing, and enables nothing."""
    (needs,) = re.findall(r"(?m)^Depends: (.*)$", (ROOT / "deploy/deb/pipeline.control.in").read_text())
    build, script = (ROOT / "scripts/build").read_text(), (ROOT / "deploy/deb/pipeline.postinst").read_text()

    assert {"remora (= @VERSION@)", "default-jre-headless (>= 2:1.17) | java17-runtime-headless"} <= set(
        needs.split(", ")
    )
    for file in ("deploy/pipeline-constraints.txt", "systemd/remora-land.service", "systemd/remora-land.timer"):
        assert f"src/{file}" in build
    assert re.findall(r"systemctl .*", script) == ["systemctl daemon-reload"]


def test_what_the_image_exposes_can_be_reached() -> None:
    """The exposed port is that of a listener on all of the container's addresses; the default is its loopback."""
    (given,) = [each for each in arguments("ENV") if each.startswith("REMORA_ADMIN_LISTEN=")]
    host, _, port = given.partition("=")[2].rpartition(":")

    assert (host, arguments("EXPOSE")) == ("0.0.0.0", [port])
    assert Settings().admin.listen == f"127.0.0.1:{port}"


def test_the_image_has_librados_if_wanted_and_no_build_tools() -> None:
    """The image installs Python, the libraries of Ceph and Kerberos unless left out, and nothing that compiles."""
    defaults = [argument for name, argument in instructions() if name == "ARG"]

    assert debian_packages("daemon") == {"ca-certificates", "python3", "${CEPH_PACKAGES}", "${KERBEROS_PACKAGES}"}
    assert "CEPH_PACKAGES=librados2" in defaults
    assert "KERBEROS_PACKAGES=python3-gssapi" in defaults
    assert not [argument for argument in arguments("RUN") if "pip" in argument]
    assert "--from=build /opt/remora /opt/remora" in arguments("COPY")


@pytest.mark.parametrize("name", ["constraints.txt", "build-constraints.txt", "pipeline-constraints.txt"])
def test_packages_from_the_index_are_pinned_by_the_digests_of_their_files(name: str) -> None:
    """Each package has one version and digests, and neither image nor Debian package takes another file."""
    entries = re.split(r"\n(?=\w)", (ROOT / "deploy" / name).read_text())[1:]

    assert entries
    pinned = re.compile(r"[\w.-]+==\S+ .*--hash=sha256:\w{64}", re.DOTALL)
    assert [each.partition(" ")[0] for each in entries if not pinned.match(each)] == []
    for file in ("Dockerfile", "scripts/build"):
        text = (ROOT / file).read_text()
        assert "--no-deps --require-hashes --requirement" in text
        assert re.search(r"PIP_BUILD_CONSTRAINT=\S+/build-constraints\.txt", text)


def test_packages_find_debians_kerberos() -> None:
    """The image and the package link to Debian's gssapi and what it imports, and the package suggests it."""
    (links,) = [each for each in arguments("RUN") if "ln -s" in each]
    build = (ROOT / "scripts/build").read_text()

    assert {"/usr/lib/python3/dist-packages/gssapi", "/usr/lib/python3/dist-packages/decorator.py"} <= set(
        links.split()
    )
    assert 'for each in gssapi decorator.py; do\n    ln -s "/usr/lib/python3/dist-packages/$each"' in build
    assert "Suggests: python3-gssapi\n" in (ROOT / "deploy/deb/control.in").read_text()


def test_the_image_keeps_queues_in_a_volume_of_its_user() -> None:
    """The folders of queues and sockets are its user's, and any user's of group 0; the former is a volume."""
    (user,) = arguments("USER")
    uid, _ = user.split(":")
    commands = " ".join(arguments("RUN"))

    assert arguments("VOLUME") == [Settings().sqlite.directory]
    assert f"install -d -m 0770 -o {uid} -g 0 {Settings().sqlite.directory}" in commands
    assert f"install -d -m 0775 -o {uid} -g 0 /run/remora" in commands


def test_everything_that_the_image_copies_exists_and_is_not_ignored() -> None:
    """Each source of a COPY is in the repository, and .dockerignore lets exactly those through."""
    sources = {
        source
        for name, argument in instructions()
        if name == "COPY" and "--from=" not in argument
        for source in argument.split()[:-1]
    }
    ignore = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]

    assert all((ROOT / source).exists() for source in sources)
    assert ignore[0] == "*"
    assert {line.removeprefix("!") for line in ignore if line.startswith("!")} == sources


def test_the_image_installs_what_the_package_needs_to_be_built() -> None:
    """The files that pyproject.toml refers to are copied before the package is built."""
    copied = " ".join(argument for name, argument in instructions() if name == "COPY")

    for file in ("pyproject.toml", "README.md", "LICENSE", "daemon"):
        assert file in copied


# ------------------------------------------------------------------------------------------ Debian package


def purged(root: Path, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    """What the package's script does at a purge, in a folder that stands for the host."""
    for each in ("etc/remora", "run/remora"):
        (root / each).mkdir(parents=True)
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "deploy/deb/postrm"), "purge"],
        capture_output=True, text=True, check=True, env={"DPKG_ROOT": str(root), "PATH": path},
    )  # fmt: skip
    assert not (root / "etc/remora").exists()
    assert not (root / "run/remora").exists()
    return done


def a_store(root: Path, folder: str = "") -> Path:
    """An embedded store of release 0.1.0, in which events wait and a dead letter is kept."""
    store = root / "var/lib/remora" / folder
    store.mkdir(parents=True)
    with tarfile.open(ROOT / "tests/data/store-of-release-0.1.0.tar.xz") as archive:
        archive.extractall(store)
    return store


@pytest.mark.parametrize("version_before", ["", "0.1.0"])
def test_an_upgrade_is_whole_though_a_service_does_not_start_again(tmp_path: Path, version_before: str) -> None:
    """The package's script restarts the services that run, tells of a failure, and leaves dpkg nothing to repeat; at
    the first installation it starts nothing."""
    systemd, calls = tmp_path / "systemd", tmp_path / "calls"
    systemd.mkdir()
    programs = {"systemctl": f'echo "$@" >>{calls}; [ "$1" != try-restart ]', "systemd-sysusers": "true"}
    for name, does in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    script = (ROOT / "deploy/deb/postinst").read_text().replace("/run/systemd/system", str(systemd))

    done = subprocess.run(
        ["/bin/sh", "-c", script, "postinst", "configure", version_before],
        capture_output=True, text=True, check=False, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip

    assert done.returncode == 0
    assert ("try-restart remora.service remora-sequencer.service" in calls.read_text()) == bool(version_before)
    assert ("systemctl status remora" in done.stderr) == bool(version_before)


def test_a_purge_goes_on_where_the_store_is_a_file_system_of_its_own(tmp_path: Path) -> None:
    """What cannot be removed, as the place that a disk is mounted on, is said, and ends no purge."""
    (tmp_path / "var/lib/remora").mkdir(parents=True)
    (tmp_path / "rm").write_text('#!/bin/sh\ncase "$*" in */var/lib/remora) exit 1;; *) exec /bin/rm "$@";; esac\n')
    (tmp_path / "rm").chmod(0o755)

    done = purged(tmp_path, f"{tmp_path}:{os.environ['PATH']}")

    assert done.stderr == "remora: /var/lib/remora could not be removed.\n"


@pytest.mark.parametrize("folder", ["", "store", "damaged/of today"])
def test_a_purge_keeps_queues_with_undelivered_events(tmp_path: Path, folder: str) -> None:
    """They stay whole, also in a folder of the store's, and the purge says what is in them."""
    store = a_store(tmp_path, folder)

    done = purged(tmp_path)

    assert "/var/lib/remora is kept, with 60 events that wait, 1 dead letter." in done.stderr
    with contextlib.closing(sqlite3.connect(store / "queues-000.db")) as connection:
        assert connection.execute("SELECT count(*) FROM entries").fetchone() == (60,)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_purge_keeps_a_store_that_has_something_in_another_directory(tmp_path: Path, is_there: bool) -> None:
    """It looks into each directory that the store names, and keeps the store too where one of them is not there."""
    store, other = a_store(tmp_path), a_store(tmp_path / "elsewhere")
    named = {"directories": [{"number": 0, "path": str(store)}, {"number": 1, "path": str(other)}]}
    with contextlib.closing(sqlite3.connect(store / "queues-000.db")) as connection:
        for table in ("entries", "letters", "log_entries"):
            connection.execute(f"DELETE FROM {table}")
        connection.execute("UPDATE queues SET head = tail")
        connection.execute("INSERT INTO meta VALUES ('directories', ?)", (json.dumps(named),))
        connection.commit()
    if not is_there:
        other.rename(tmp_path / "lost")

    done = purged(tmp_path)

    what = "60 events that wait, 1 dead letter" if is_there else "queues that cannot be looked at"
    assert f"/var/lib/remora is kept, with {what}." in done.stderr
    assert (store / "queues-000.db").exists()


def test_a_purge_removes_queues_in_which_nothing_is(tmp_path: Path) -> None:
    """Nothing is left of a store whose events are all delivered, nor of one that was never made."""
    store = a_store(tmp_path)
    with contextlib.closing(sqlite3.connect(store / "queues-000.db")) as connection:
        for table in ("entries", "letters", "log_entries"):
            connection.execute(f"DELETE FROM {table}")
        connection.execute("UPDATE queues SET head = tail")
        connection.commit()

    assert purged(tmp_path).stderr == ""
    assert not store.exists()
    assert purged(tmp_path).stderr == ""


async def test_a_purge_removes_queues_that_were_in_use(tmp_path: Path) -> None:
    """Nothing is left of a store of today whose events are all delivered; while one waits, it is kept."""
    directory = tmp_path / "var/lib/remora"
    settings = SqliteSettings(directory=str(directory), files=1)
    async with SqliteStore(settings) as store:
        shard = (await store.own_topics.create(own_topic("t", 1))).shard(0)
        await append(store, shard, b"event")
    waits = purged(tmp_path).stderr
    async with SqliteStore(settings) as store:
        token = await held(store, shard)
        page = await store.queue.read(token, b"", 1)
        await store.queue.remove(token, page.positions[-1], 1, delivered(page))

    assert "is kept, with 1 event that waits." in waits
    assert purged(tmp_path).stderr == ""
    assert not directory.exists()


@pytest.mark.parametrize("what", ["damaged", "half", "no python"])
def test_a_purge_keeps_queues_that_it_cannot_look_at(tmp_path: Path, what: str) -> None:
    """Where nobody can tell what is in them, they stay."""
    store, tools = a_store(tmp_path), tmp_path / "tools"
    tools.mkdir()
    (tools / "rm").symlink_to("/bin/rm")
    match what:
        case "damaged":
            (store / "queues-000.db").write_bytes(b"no database" * 1000)
        case "half":
            (store / "queues-000.db").unlink()

    done = purged(tmp_path, path=str(tools) if what == "no python" else os.environ["PATH"])

    assert "is kept, with queues that cannot be looked at." in done.stderr
    assert (store / "queues-000.db-wal").exists()
