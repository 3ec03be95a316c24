"""The settings tree: defaults, refusals with the key's path, rules, and what a reload may change."""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora import config
from remora.config import (
    DeliverySettings,
    KafkaSettings,
    LogSettings,
    MeterSettings,
    MetersSettings,
    OwnershipSettings,
    RadosSettings,
    ScopeSettings,
    Settings,
    ShapingSettings,
    TcpAddress,
    UnixAddress,
    parse_listen,
)
from remora.config.known import RETIRED
from remora.model.errors import ConfigError
from remora.model.traffic import Meter, Principal, PrincipalKind, Priority, Scope, ScopeKind, TrafficClass
from remora.policy.shaping.rates import Limit, Rate

WORDS = ("", "x", "1s", "90s", "1KiB", "64MiB", "snappy", "-1s", "9999d", "\0", "ü")
SHIPPED = Path(__file__).parents[2] / "config" / "options.toml"
COMMON = SHIPPED.with_name("remora.toml")


def written(tmp_path: Path, text: str) -> Path:
    """A configuration file with this text."""
    path = tmp_path / "remora.toml"
    path.write_text(text)
    return path


def uncommented(text: str) -> dict[str, Mapping[str, object]]:
    """The shipped file with every commented option switched on."""
    return tomllib.loads(re.sub(r"^#(?=[a-z_]+ = )", "", text, flags=re.MULTILINE))


# ----------------------------------------------------------------------------------------- shipped file


def test_the_shipped_file_names_every_option_at_its_default() -> None:
    """The shipped file and the code have the same options with the same defaults, neither more nor fewer."""
    document = uncommented(SHIPPED.read_text())

    shipped = {f"{section}.{key}": value for section, table in document.items() for key, value in table.items()}

    assert shipped == dict(config.options())


def test_the_shipped_file_gives_the_defaults() -> None:
    """Both shipped files, as they are and with every option switched on, are accepted and mean the defaults."""
    for file in (SHIPPED, COMMON):
        assert config.load(file) == Settings()
        assert config.from_document(uncommented(file.read_text())) == Settings()


def test_an_installation_begins_with_some_thirty_options() -> None:
    """Its file has those that people set, each explained as in the file of all options."""
    begun_with, all_options = COMMON.read_text(), SHIPPED.read_text()
    chosen = [line for line in begun_with.splitlines() if re.match(r"#[a-z_]+ = ", line)]
    explained = [line for line in begun_with.partition("\n[")[2].splitlines() if line.startswith("# ")]

    assert 25 <= len(chosen) <= 40
    assert set(chosen) <= set(all_options.splitlines())
    assert set(explained) <= set(all_options.splitlines())


def test_the_shipped_file_explains_each_option() -> None:
    """Every option stands below a comment, alone or in a group with its like."""
    group_has_comment = False
    for line in SHIPPED.read_text().splitlines():
        if line.startswith("# "):
            group_has_comment = True
        elif not line.startswith("#"):
            group_has_comment = False
        else:
            assert group_has_comment, f"nothing explains {line!r}"


def test_the_shipped_file_marks_what_a_reload_changes() -> None:
    """An option's comment says (live) exactly when a reload changes it."""
    section, live = "", False
    block: list[str] = []
    marked = set()
    for line in SHIPPED.read_text().splitlines():
        if found := re.match(r"\[(\w+)\]", line):
            section, block = found[1], []
        elif line.startswith("# "):
            block = [line] if not block or not block[-1].startswith("# ") else [*block, line]
            live = "(live)" in " ".join(block)
        elif found := re.match(r"#([a-z_]+) = ", line):
            block.append(line)
            if live:
                marked.add(f"{section}.{found[1]}")

    # One comment speaks of three sizes, of which it marks the first.
    assert marked - {"delivery.worker_bytes", "delivery.endpoint_bytes"} == set(config.LIVE)


def test_every_option_is_read_somewhere() -> None:
    """Each option's name is used by code outside the settings, or by a property of theirs.

    This finds options that are forgotten, not all of them: a name like `kind` is used by others too.
    """
    settings = Path(config.__file__).parent
    others = "\n".join(path.read_text() for path in settings.parent.rglob("*.py") if path.parent != settings)
    properties = re.findall(r"\bself\.(\w+)", "\n".join(path.read_text() for path in settings.glob("*.py")))

    unused = {
        f"{section.name}.{option.name}"
        for section in fields(Settings)
        for option in fields(getattr(Settings(), section.name))
        if not re.search(rf"\.{option.name}\b", others) and option.name not in properties
    }

    assert unused == set()


# --------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("[ownership]\nrenew_intervall = '1s'", "ownership.renew_intervall", 'did you mean "renew_interval"?'),
        ("[delivery]\nlease = '1s'", "delivery.lease", "it belongs into [ownership]"),
        ("[store]\ninterval = '1s'", "store.interval", "it belongs into [balance] or [quarantine]"),
        ("[ownrship]\n", "ownrship", 'did you mean "ownership"?'),
        ("lease = '1s'", "lease", "stands in no section; it belongs into [ownership]"),
        ("foo = '1s'", "foo", "there is no such section"),
        ('[ownership]\nlease = "1s\\n"', "ownership.lease", "control characters"),
        ("[balance]\nweights = { cpu = " + "9" * 400 + " }", "balance.weights.cpu", "is outside 0 to 1000"),
        ("[balance]\nweights = { cpu = nan }", "balance.weights.cpu", "nan is outside 0 to 1000"),
        ("[traces]\nendpoint = 'http://[::1'", "traces.endpoint", "expected a URL such as"),
        ("[traces]\nendpoint = 'http://host:99999/'", "traces.endpoint", "expected a URL such as"),
        ("rados = 'x'", "rados", "expected a section [rados], not text"),
        ("rados = 7", "rados", "expected a section [rados], not a number"),
        ("[ownership]\nlease = 90", "ownership.lease", 'expected a duration in quotes such as "30s", not a number'),
        ("[ownership]\nlease = '64MiB'", "ownership.lease", "expected a duration with a unit"),
        ("[ownership]\nlease = 1979-05-27", "ownership.lease", "not a date or time"),
        ("[delivery]\nshard_bytes = '30s'", "delivery.shard_bytes", "expected a size with a unit"),
        ("[delivery]\nshard_bytes = 1024", "delivery.shard_bytes", 'expected a size in quotes such as "64MiB"'),
        ("[delivery]\nlist_entries = '7'", "delivery.list_entries", "expected a whole number, not text"),
        ("[delivery]\nlist_entries = true", "delivery.list_entries", "expected a whole number, not true or false"),
        ("[delivery]\nlist_entries = 1.5", "delivery.list_entries", "expected a whole number, not a fraction"),
        ("[delivery]\nlist_entries = 0", "delivery.list_entries", "0 is outside 1 to 10000"),
        ("[delivery]\nretry_cap = '8d'", "delivery.retry_cap", "8d is outside 1ms to 7d"),
        ("[rados]\npool = 7", "rados.pool", "expected text in quotes, not a number"),
        ('[rados]\nconf = "/etc\\u0000/x"', "rados.conf", "control characters"),
        ("[kafka]\ncompression = 'snapy'", "kafka.compression", 'did you mean "snappy"?'),
        ("[store]\nkind = 'redis'", "store.kind", '"redis" is not one of sqlite, rados'),
        ("[sqlite]\ndirectory = 'queues'", "sqlite.directory", "expected an absolute path"),
        ("[ingest]\nlisten = '0.0.0.0:9751'", "ingest.listen", "can be reached from other hosts"),
        ("[ingest]\nlisten = 'example.com:9751'\ntokens = '/t'", "ingest.listen", "can be reached from other hosts"),
        ("[ingest]\ntls_key = '/k'", "ingest.tls_key", "certificate and key belong together"),
        ("[ingest]\nsocket_mode = '666666'", "ingest.socket_mode", "three octal digits"),
        ("[rados]\nname = 'remora'", "rados.name", "such as"),
        ("[rados]\nnamespace = 'notif'", "rados.namespace", "set rados.pool too"),
        ("[admin]\nlisten = '9750'", "admin.listen", 'expected "host:port" or "unix:/path"'),
        ("[admin]\nsocket_mode = '777777'", "admin.socket_mode", "three octal digits"),
        ("[admin]\ncontrol_mode = '0666'", "admin.control_mode", '"0666" is not one of 0600, 0660'),
        ("[admin]\ncontrol_socket = 'run/c'", "admin.control_socket", "expected an absolute path"),
        ("[admin]\ncontrol_socket = '/" + "x" * 107 + "'", "admin.control_socket", "at most 107 bytes"),
        (
            "[admin]\ncontrol_tokens = '/t'\n[ingest]\ntokens = '/t'",
            "admin.control_tokens",
            "not be the file of ingest",
        ),
        ("[ownership]\nhost_id = 'a/b'", "ownership.host_id", "only letters"),
        ("[kafka]\nclient_id = ''", "kafka.client_id", "1 to 64"),
        (
            "[kafka]\nclient_files = 'keys'",
            "kafka.client_files",
            'expected absolute paths, ":" between them, not "keys"',
        ),
        (
            "[kafka]\nkerberos_keytab = 'remora.keytab'",
            "kafka.kerberos_keytab",
            'expected an absolute path, not "remora.keytab"',
        ),
        ("[kafka]\nkerberos_principal = 'remora'", "kafka.kerberos_principal", "needs kafka.kerberos_keytab"),
        ("[kafka]\nkerberos_service_name = ''", "kafka.kerberos_service_name", "1 to 64"),
        (
            "[kafka]\nca_directories = '/etc/ssl:ca'",
            "kafka.ca_directories",
            'absolute paths, ":" between them, not "ca"',
        ),
    ],
)
def test_a_wrong_option_is_refused_with_its_path(tmp_path: Path, text: str, key: str, message: str) -> None:
    """The error begins with the dotted key and says what is wrong in one line."""
    with pytest.raises(ConfigError) as caught:
        config.load(written(tmp_path, text))

    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_requests_end_before_a_drain_does(tmp_path: Path) -> None:
    """A short time for a drain shortens what HTTP and AMQP requests may take, and a long one leaves it as it is."""
    short = config.load(written(tmp_path, "[delivery]\ndrain_timeout = '5s'\n[kafka]\ndelivery_timeout = '1s'\n"))
    long = config.load(written(tmp_path, "[delivery]\ndrain_timeout = '5m'\n"))

    assert (short.amqp_within_drain.delivery_timeout_s, short.http_within_drain.request_timeout_s) == (4.0, 4.0)
    assert (long.amqp_within_drain, long.http_within_drain) == (long.amqp, long.http)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[ownership]\nrenew_interval = '43s'", "ownership.renew_interval"),
        ("[ownership]\nlease = '64s'", "ownership.renew_interval"),
        ("[ownership]\ntrust_margin = '31s'", "ownership.renew_interval"),
        ("[delivery]\nretry_base = '1m'", "delivery.retry_base"),
        ("[delivery]\nidle_min = '2s'", "delivery.idle_min"),
        ("[delivery]\nshard_bytes = '65MiB'", "delivery.shard_bytes"),
        ("[delivery]\nendpoint_bytes = '65MiB'", "delivery.endpoint_bytes"),
        ("[delivery]\ndrain_timeout = '10s'", "delivery.drain_timeout"),
        ("[store]\nkind = 'rados'\n[rados]\nop_timeout = '31s'", "rados.op_timeout"),
        ("[kafka]\nmax_batch_bytes = '17MiB'", "kafka.max_batch_bytes"),
        ("[kafka]\ntransaction_timeout = '10s'", "kafka.transaction_timeout"),
        ("[[shaping.scope]]\nname = 'x'\nof = 'host'\nacross = 'cluster'", "shaping.scope.x.across"),
        ("[sqlite]\ndirectory_bytes = '63MiB'", "sqlite.directory_bytes"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(tmp_path: Path, text: str, key: str) -> None:
    """A broken rule names the option to look at first, whichever section it is in."""
    with pytest.raises(ConfigError) as caught:
        config.load(written(tmp_path, text))

    assert caught.value.key == key


def test_all_problems_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    """One refusal names each unknown section and option, each wrong value, and each broken rule, within a section and
    over several."""
    text = """
        [ownrship]
        [ownership]
        lease = "20s"
        host_id = "a/b"
        [delivery]
        shard_bytes = 7
        idle_min = "2s"
        drain_timeout = "10s"
        lease = "1s"
        [kafka]
        compression = "snapy"
        client_id = ""
    """

    with pytest.raises(ConfigError) as caught:
        config.load(written(tmp_path, text))

    assert [each.key for each in caught.value.problems] == [
        "ownrship",
        "delivery.shard_bytes",
        "delivery.lease",
        "kafka.compression",
        "ownership.renew_interval",
        "ownership.host_id",
        "delivery.idle_min",
        "kafka.client_id",
        "supervisor.watchdog",
        "delivery.drain_timeout",
    ]
    assert caught.value.key == "ownrship"
    assert all(str(each) in str(caught.value) for each in caught.value.problems)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[delivery]\nretry_cap = 1\nretry_base = '1m'", "delivery.retry_cap"),
        ("[delivery]\nretry_base = 1\nretry_cap = '1ms'", "delivery.retry_base"),
        ("[kafka]\ndelivery_timeout = '9999d'\n[delivery]\ndrain_timeout = '1s'", "kafka.delivery_timeout"),
        (
            "[ingest]\ntls_certificate = 1\ntls_key = '/k'\ntokens = '/t'\nlisten = '0.0.0.0:1'",
            "ingest.tls_certificate",
        ),
    ],
)
def test_a_rule_says_nothing_of_an_option_that_cannot_be_read(tmp_path: Path, text: str, key: str) -> None:
    """Where an option's value is wrong, no rule that binds it is called broken, since its value is not known."""
    with pytest.raises(ConfigError) as caught:
        config.load(written(tmp_path, text))

    assert [each.key for each in caught.value.problems] == [key]


def test_rules_bind_options_that_exist() -> None:
    """Each rule over several options names them as the file does, so that a wrong one of them is not reported twice."""
    known = dict(config.options()).keys()
    breaking = {
        "ownership": {"renew_interval": "43s"},
        "delivery": {"idle_min": "2s", "retry_base": "1m", "endpoint_bytes": "65MiB", "drain_timeout": "10s"},
        "rados": {"namespace": "n", "op_timeout": "44s"},
        "store": {"kind": "rados"},
        "supervisor": {"watchdog": "1h"},
        "kafka": {"max_batch_bytes": "17MiB", "transaction_timeout": "10s"},
        "ingest": {"tls_key": "/k", "max_request_bytes": "1GiB", "listen": "0.0.0.0:1"},
    }

    with pytest.raises(ConfigError) as caught:
        config.from_document(breaking)

    assert len(caught.value.problems) == 13
    assert all({each.key, *each.binds} <= known for each in caught.value.problems)


def test_rules_of_the_cluster_do_not_bind_the_embedded_store(tmp_path: Path) -> None:
    """Quick renewals are accepted where no operation on a cluster could outlast them."""
    loaded = config.load(written(tmp_path, "[ownership]\nlease = '6s'\nrenew_interval = '1500ms'\ntrust_margin = '1s'\n"
                                 "[supervisor]\nwatchdog = '3s'"))  # fmt: skip

    assert loaded.rados.op_timeout_s > loaded.ownership.renew_interval_s


def test_a_rule_cannot_be_got_round_in_code() -> None:
    """Values that break a rule cannot be built at all."""
    with pytest.raises(ConfigError, match=r"ownership\.renew_interval"):
        OwnershipSettings(lease_s=10, renew_interval_s=5)


@given(lease=st.floats(1, 1000), renew=st.floats(0.1, 1000), margin=st.floats(0.1, 100))
def test_accepted_lease_times_leave_room_for_a_second_renewal(lease: float, renew: float, margin: float) -> None:
    """Whatever is accepted, trust lasts until two renewals could have been tried."""
    try:
        times = OwnershipSettings(lease_s=lease, renew_interval_s=renew, trust_margin_s=margin).times
    except ConfigError:
        assert 2 * renew + margin > lease
        return
    assert 2 * times.renew_s <= times.lease_s - times.margin_s + 1e-9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[rados\n", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"[log]\nlevel = " + b"9" * 5000, "is not TOML"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"#" * (config.MOST_BYTES + 1), "not a configuration file"),
    ],
)
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    """A file that cannot be parsed is refused by its name."""
    path = tmp_path / "broken.toml"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=message) as caught:
        config.load(path)

    assert str(path) in str(caught.value)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    """A file that an editor of Windows wrote, with a mark and its line ends, is read like any other."""
    path = tmp_path / "remora.toml"
    path.write_bytes(b"\xef\xbb\xbf[log]\r\nlevel = 'debug'\r\n")

    assert config.load(path).log.level == "debug"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file and a folder are refused by name, in the system's words."""
    with pytest.raises(ConfigError, match=re.escape(f"cannot read {tmp_path / 'none'}: No such file")):
        config.load(tmp_path / "none")
    with pytest.raises(ConfigError, match=re.escape(f"cannot read {tmp_path}: Is a directory")):
        config.load(tmp_path)


@given(
    document=st.dictionaries(
        st.sampled_from(["rados", "ownership", "delivery", "kafka", "x"]),
        st.dictionaries(
            st.sampled_from(["lease", "pool", "list_entries", "shard_bytes", "compression", "y"]),
            st.one_of(st.sampled_from(WORDS), st.integers(), st.booleans(), st.floats(), st.lists(st.integers())),
        ),
    )
)
def test_any_document_is_accepted_or_refused_by_one_error(document: dict[str, dict[str, object]]) -> None:
    """Nothing that TOML can express makes the loader raise anything but ConfigError."""
    try:
        settings = config.from_document(document)
    except ConfigError as exc:
        refused = exc
    else:
        assert isinstance(settings, Settings)
        return
    assert refused.key


# ------------------------------------------------------------------------------------------------ values


def test_a_file_sets_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    """Named options get their values in seconds and bytes; the rest keep their defaults."""
    path = written(tmp_path, "[kafka]\ndelivery_timeout = '1500ms'\nmax_batch_bytes = '1MiB'\n[log]\nlevel = 'debug'\n")

    settings = config.load(path)

    assert settings == replace(
        Settings(),
        kafka=KafkaSettings(delivery_timeout_s=1.5, max_batch_bytes=1 << 20),
        log=LogSettings(level="debug"),
    )


def test_settings_are_frozen() -> None:
    """No part of the tree can be changed once it is built."""
    with pytest.raises(FrozenInstanceError):
        Settings().rados.pool = "other"  # type: ignore[misc]  # the point of the test


def test_a_host_goes_by_its_configured_name_else_by_a_lasting_one() -> None:
    """The host's name fits into a lock's cookie and stays the same from call to call."""
    assert OwnershipSettings(host_id="rack-1").host == "rack-1"
    assert OwnershipSettings().host == OwnershipSettings().host
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", OwnershipSettings().host)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9750", TcpAddress("127.0.0.1", 9750)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("[::1]:9750", TcpAddress("::1", 9750)),
        ("unix:/run/remora/admin.sock", UnixAddress("/run/remora/admin.sock")),
    ],
)
def test_a_listen_address_is_taken_apart(text: str, address: TcpAddress | UnixAddress) -> None:
    """Hosts, IPv6 hosts in brackets and socket paths are told apart."""
    assert parse_listen(text) == address


@pytest.mark.parametrize(
    "text",
    ["", ":1", "host", "host:", "host:65536", "host:-1", "::1:9750", "unix:", "unix:relative", "unix:/" + "x" * 107],
)
def test_a_listen_address_that_cannot_be_one_is_refused(text: str) -> None:
    """What cannot be listened on is refused when the file is read."""
    with pytest.raises(ValueError, match=r"expected|brackets"):
        parse_listen(text)


@pytest.mark.parametrize("content", [None, b"", b"\n", b"uninitialized\n"])
def test_a_machine_id_that_is_yet_to_be_made_names_no_host(tmp_path: Path, content: bytes | None) -> None:
    """An image's hosts would all have one name by it: the host's own name stands for it until it has an id."""
    empty, made = tmp_path / "empty", tmp_path / "made"
    if content is not None:
        empty.write_bytes(content)
    made.write_bytes(b"5f1c0d1c7b0e4f5f9c0b5d3f1b2a4c6e\n")

    assert config.own_host_id(empty) == re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64]
    assert re.fullmatch(r"[0-9a-f]{16}", config.own_host_id(made))


# ------------------------------------------------------------------------------------------- environment


def test_the_environment_stands_over_the_file(tmp_path: Path) -> None:
    """REMORA_<SECTION>_<OPTION> sets an option of any kind, over the file and the defaults; others mean nothing."""
    path = written(tmp_path, "[kafka]\ncompression = 'lz4'\ndelivery_timeout = '5s'\n")
    environment = {
        "REMORA_KAFKA_COMPRESSION": "zstd",
        "REMORA_DELIVERY_LIST_ENTRIES": "7",
        "REMORA_SQLITE_QUEUE_BYTES": "64MiB",
        "REMORA_OWNERSHIP_HOST_ID": "7",
        "REMORA_CONFIG": "x",
        "REMORA_PURE_PYTHON": "1",
        "REMORA_LOG": "x",
        "KAFKA_CLIENT_ID": "x",
    }

    over_file, over_defaults = config.load(path, environment), config.load(None, environment)

    assert over_file.kafka == KafkaSettings(compression="zstd", delivery_timeout_s=5.0)
    assert over_defaults.kafka == KafkaSettings(compression="zstd")
    for each in (over_file, over_defaults):
        assert each.delivery.list_entries == 7
        assert each.sqlite.queue_bytes == 64 << 20
        assert each.ownership.host_id == "7"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("REMORA_KAFKA_COMPRESION", "lz4", 'there is no option kafka.compresion; did you mean "compression"?'),
        ("REMORA_KAFKA_LEASE", "1s", "it belongs into [ownership]"),
        ("REMORA_KAFKA_COMPRESSION", "snapy", 'did you mean "snappy"?'),
        ("REMORA_DELIVERY_LIST_ENTRIES", "many", "expected a whole number, not text"),
        ("REMORA_DELIVERY_LIST_ENTRIES", "0", "0 is outside 1 to 10000"),
        ("REMORA_OWNERSHIP_LEASE", "", "expected a duration with a unit"),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(variable: str, value: str, message: str) -> None:
    """The refusal begins with the name of the variable, and no rule that binds its option is reported too."""
    with pytest.raises(ConfigError) as caught:
        config.load(None, {variable: value, "REMORA_OWNERSHIP_RENEW_INTERVAL": "44s"})

    problems = caught.value.problems
    assert problems[0].key == variable
    assert message in str(problems[0])
    assert len(problems) == (1 if variable == "REMORA_OWNERSHIP_LEASE" else 2)


SERVICE_LINKS = {
    "REMORA_LOG_SERVICE_HOST": "10.0.0.1",
    "REMORA_LOG_SERVICE_PORT": "80",
    "REMORA_LOG_SERVICE_PORT_HTTP": "80",
    "REMORA_LOG_PORT": "tcp://10.0.0.1:80",
    "REMORA_LOG_PORT_80_TCP": "tcp://10.0.0.1:80",
    "REMORA_LOG_PORT_80_TCP_ADDR": "10.0.0.1",
    "REMORA_LOG_PORT_80_TCP_PORT": "80",
    "REMORA_LOG_PORT_80_TCP_PROTO": "tcp",
    "REMORA_KAFKA_UI_SERVICE_HOST": "fd00::1",
    "REMORA_KAFKA_UI_PORT": "udp://[fd00::1]:53",
    "REMORA_KAFKA_UI_PORT_53_UDP_ADDR": "fd00::1",
}


def test_the_variables_that_kubernetes_sets_for_a_service_are_no_options() -> None:
    """Beside Services called `remora-log` and `remora-kafka-ui` only options are read from the environment."""
    environment = {**SERVICE_LINKS, "REMORA_LOG_LEVEL": "debug"}

    assert config.from_environment(environment) == {"REMORA_LOG_LEVEL": "log.level"}
    assert config.load(None, environment).log.level == "debug"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("REMORA_LOG_PORT", "80"),
        ("REMORA_LOG_PORT", "http://10.0.0.1:80"),
        ("REMORA_LOG_PORTS", "tcp://10.0.0.1:80"),
        ("REMORA_LOG_PORT_80", "80"),
        ("REMORA_LOG_PORT_80_TCP_ADDRESS", "10.0.0.1"),
        ("REMORA_LOG_PORT_HTTP_TCP", "tcp://10.0.0.1:80"),
        ("REMORA_LOG_SERVICE", "10.0.0.1"),
        ("REMORA_LOG_LEVL", "debug"),
    ],
)
def test_what_only_resembles_a_variable_of_a_service_is_refused(variable: str, value: str) -> None:
    """A variable that names no option, and that Kubernetes does not set either, is refused by its name."""
    with pytest.raises(ConfigError) as caught:
        config.load(None, {**SERVICE_LINKS, variable: value})

    assert [each.key for each in caught.value.problems] == [variable]


@given(
    st.dictionaries(
        st.sampled_from([f"REMORA_{key.replace('.', '_').upper()}" for key, _ in config.options()]),
        st.sampled_from(WORDS) | st.text(max_size=6),
    )
)
def test_any_environment_is_accepted_or_refused_by_one_error(environment: dict[str, str]) -> None:
    """Every option can be named in the environment, and no value raises anything but ConfigError."""
    assert len(config.from_environment(environment)) == len(environment)
    try:
        settings = config.load(None, environment)
    except ConfigError as exc:
        assert all(each.key for each in exc.problems)  # noqa: PT017  # both ends are right, and nothing else is
    else:
        assert isinstance(settings, Settings)


# ------------------------------------------------------------------------------------------------ reload


def test_changes_tell_live_options_from_those_that_wait() -> None:
    """A reload names what changes at once and what needs a restart, by dotted keys."""
    new = replace(
        Settings(),
        rados=RadosSettings(pool="p"),
        delivery=DeliverySettings(retry_cap_s=60.0, worker_bytes=128 << 20),
    )

    found = config.changes(Settings(), new)

    assert found.live == ("delivery.retry_cap",)
    assert found.restart == ("rados.pool", "delivery.worker_bytes")


def test_nothing_changes_between_equal_settings() -> None:
    """Reloading an unchanged file changes nothing."""
    assert config.changes(Settings(), Settings()) == config.Changes((), ())


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ('[delivery]\ndrain_timeout = "6s"\n[kafka]\ndelivery_timeout = "3s"', {"delivery.drain_timeout"}),
        ('[delivery]\nshard_bytes = "256KiB"\n[kafka]\nmax_batch_bytes = "128KiB"', {"delivery.shard_bytes"}),
        (
            '[delivery]\nshard_bytes = "48MiB"\nworker_bytes = "64MiB"',
            {"delivery.shard_bytes"},
        ),
        (
            '[store]\nkind = "rados"\n[[shaping.scope]]\nname = "osds"\nof = "store"',
            {"shaping.scope"},
        ),
    ],
)
def test_live_options_wait_for_those_that_a_rule_binds_them_to(tmp_path: Path, text: str, waits: set[str]) -> None:
    """A reload of a good file keeps a live option whose new value would break a rule beside what waits for a restart,
    names both, and applies all others."""
    new = config.load(written(tmp_path, f'{text}\n[log]\nlevel = "debug"'))

    found, used = config.changes(Settings(), new), config.applied(Settings(), new)

    assert found.live == ("log.level",)
    assert waits < set(found.restart)
    assert waits < config.LIVE
    assert used == replace(Settings(), log=new.log)


def test_every_live_option_exists() -> None:
    """The list of live options names only options that there are."""
    assert dict(config.options()).keys() >= config.LIVE


# ------------------------------------------------------------------------------------------------ tables

ALONE = "so one busy worker alone cannot take the whole rate"
PATH = "shaping.scope.uplink.meters"

SHAPING = """
[shaping]
default_class = "backlog"
[[shaping.scope]]
name = "uplink"
of = "host"
enabled = true
[shaping.scope.meters]
client_low = { guaranteed = "1MB", burst = "512KiB", max = "500000B" }
priority_queue = { guaranteed = "2MB", burst = "1MB" }
[[shaping.principal]]
name = "batch"
match = ["logs-*"]
max_class = "replay"
[[shaping.principal]]
name = "eu"
of = "destination"
match = ["*.eu.example.com", "10.0.0.0/8"]
max_class = "realtime"
[[ingest.limit]]
name = "gateways"
of = "token"
match = ["gateway-*"]
bytes = "20MB"
burst = "40MB"
"""


def test_tables_are_read(tmp_path: Path) -> None:
    """Scopes with their meters, principals and limits get what the file says, and defaults elsewhere."""
    settings = config.load(written(tmp_path, SHAPING.replace("500000B", "1MB")))

    (scope,), (limit,) = settings.shaping.scope, settings.ingest.limit
    assert scope.scope == Scope("uplink", ScopeKind.HOST)
    assert scope.by_bucket == {
        "client_low": Meter(1_000_000, 524_288, 1_000_000),
        "priority_queue": Meter(2_000_000, 1_000_000),
    }
    assert [each.principal for each in settings.shaping.principal] == [
        Principal("batch", ("logs-*",), TrafficClass.REPLAY),
        Principal("eu", ("*.eu.example.com", "10.0.0.0/8"), TrafficClass.REALTIME, PrincipalKind.DESTINATION),
    ]
    assert limit.limit == Limit("token", "gateways", ("gateway-*",), bytes=Rate(20_000_000, 40_000_000))
    assert config.changes(Settings(), settings).restart == ()


def test_settings_with_tables_travel_as_json(tmp_path: Path) -> None:
    """A worker gets the very settings that the supervisor has."""
    settings = config.load(written(tmp_path, SHAPING.replace("500000B", "1MB")))

    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("[shaping]\nscope = 'uplink'", "shaping.scope", "expected tables [[shaping.scope]], not text"),
        ("[[shaping.scope]]\nof = 'host'", "shaping.scope.0.name", "is missing"),
        ("[[shaping.scope]]\nname = 'Up'\nof = 'host'", "shaping.scope.Up", "[a-z][a-z0-9-]{0,31}"),
        ("[[shaping.scope]]\nname = 'u'\nof = 'hst'", "shaping.scope.u.of", 'did you mean "host"?'),
        ("[[shaping.scope]]\nname = 'u'\nof = 'host'\nenabled = 'yes'", "shaping.scope.u.enabled", "true or false"),
        ("[[shaping.scope]]\nname = 'u'\nof = 'store'", "shaping.scope.u.of", 'unless store.kind is "rados"'),
        (
            "[store]\nkind = 'rados'\n[[shaping.scope]]\nname = 'u'\nof = 'store'\nacross = 'cluster'",
            "shaping.scope.u.across",
            'must be "host" where the scope is of a store',
        ),
        (
            "[[shaping.scope]]\nname = 'u'\nof = 'destination'\nmatch = ['10.0.0.0/99']",
            "shaping.scope.u.match",
            "expected a network such as 10.0.0.0/8",
        ),
        ("[[shaping.scope]]\nname = 'u'\nof = 'host'\nmeters = 'none'", "shaping.scope.u.meters", "expected a table"),
        (
            "[[shaping.scope]]\nname = 'u'\nof = 'host'\nmeters.client_lo = {}",
            "shaping.scope.u.meters.client_lo",
            'did you mean "client_low"?',
        ),
        (
            "[[shaping.scope]]\nname = 'u'\nof = 'host'\nmeters.client_low = { guaranteed = '1MB' }",
            "shaping.scope.u.meters.client_low.burst",
            "is missing",
        ),
        (
            "[[shaping.scope]]\nname = 'u'\nof = 'host'\nmeters.client_low = { guaranteed = '-1MB', burst = '1MB' }",
            "shaping.scope.u.meters.client_low.guaranteed",
            "expected a size with a unit",
        ),
        (
            "[[shaping.scope]]\nname = 'u'\nof = 'host'\nmeters.client_low = { guaranteed = '1MB', burst = '0B' }",
            "shaping.scope.u.meters.client_low.burst",
            "must be above 0 where the guaranteed rate is",
        ),
        (
            "[[shaping.principal]]\nname = 'p'\nmatch = ['x']\nmax_class = 'relief'",
            "shaping.principal.p.max_class",
            "is not one of realtime, tail",
        ),
        ("[shaping]\ndefault_class = 'relief'", "shaping.default_class", "is not one of realtime, tail"),
        ("[shaping]\ntick = '2s'", "shaping.tick", "2s is outside 1ms to 1s"),
        ("[[ingest.limit]]\nname = 'g'\nof = 'token'\nbytes = '1MB'", "ingest.limit.g.burst", "is missing"),
        ("[[ingest.limit]]\nname = 'g'\nof = 'host'", "ingest.limit.g.of", "is not one of token, topic"),
    ],
)
def test_a_wrong_table_is_refused_with_its_path(tmp_path: Path, text: str, key: str, message: str) -> None:
    """The error names the table by its name, down to the option."""
    with pytest.raises(ConfigError) as caught:
        config.load(written(tmp_path, text))

    assert caught.value.key == key
    assert message in str(caught.value)


def test_all_problems_of_tables_are_named_at_once(tmp_path: Path) -> None:
    """One refusal names what is wrong in several tables, and each name that is there twice."""
    text = """
        [[shaping.scope]]
        name = "a"
        of = "host"
        meters.max = { guaranteed = "1MB", burst = 7 }
        meters.idle = { burst = "1MB" }
        [[shaping.scope]]
        name = "b"
        of = "tenant"
        matches = ["x"]
        [[shaping.principal]]
        name = "p"
        match = ["x"]
        max_class = "tail"
        [[shaping.principal]]
        name = "p"
        match = ["y"]
        max_class = "tail"
    """

    with pytest.raises(ConfigError) as caught:
        config.load(written(tmp_path, text))

    assert [each.key for each in caught.value.problems] == [
        "shaping.scope.a.meters.max.burst",
        "shaping.scope.a.meters.idle.guaranteed",
        "shaping.scope.b.matches",
        "shaping.principal.p",
    ]


def test_what_may_not_be_meant_is_remarked(tmp_path: Path) -> None:
    """A cut guarantee, a priority without credit, and a burst that one busy worker would be held back by."""
    settings = config.load(written(tmp_path, SHAPING.replace('burst = "1MB"', 'burst = "50000B"')))

    assert settings.shaping.remarks(workers=4) == [
        f"{PATH}.client_low.guaranteed: 1MB is cut to its max, 500KB",
        f"{PATH}: no credit for max, client_high, client_normal, background, idle: no shard moves at these",
        f"{PATH}.priority_queue.burst: 50KB is less than 4 workers take in a tick of 10ms, {ALONE}",
    ]
    assert Settings().shaping.remarks(workers=4) == []


def test_a_list_of_brokers_that_a_scope_divides_is_remarked(tmp_path: Path) -> None:
    """A list that the file names is told with those of its brokers that a scope fits, where that is not all of them."""
    named = ["k1.eu.example.com:9092,k1.us.example.com:9092", "k1.eu.example.com:9092,k2.eu.example.com:9092"]
    text = f"""
        [[shaping.scope]]
        name = "eu"
        of = "destination"
        match = ["*.eu.example.com"]
        [[shaping.scope]]
        name = "both"
        of = "destination"
        match = ["{named[0]}"]
        [[shaping.principal]]
        name = "p"
        of = "destination"
        match = ["{named[1]}"]
        max_class = "tail"
    """

    (remark,) = config.load(written(tmp_path, text)).shaping.remarks(workers=1)

    assert remark.startswith(f"shaping.scope.eu.match: fits only k1.eu.example.com:9092 of {named[0]}: ")


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [
        ("near:9092,a:9092", "by name: whether the others lie in its networks, the daemon looks up"),
        ("10.1.2.3:9092,a:9092", "by name: whether the others lie in its networks, the daemon looks up"),
        ("10.1.2.3:9092,11.1.2.3:9092", "that destination belongs to the next scope"),
        ("near:9092,a:9092,11.1.2.3:9092", "that destination belongs to the next scope"),
    ],
)
def test_a_list_that_a_scope_may_fit_by_its_addresses_is_remarked(tmp_path: Path, brokers: str, expected: str) -> None:
    """Where the rest of a list are names, a scope with networks may fit them, which only the daemon finds out."""
    text = f"""
        [[shaping.scope]]
        name = "site"
        of = "destination"
        match = ["near", "10.0.0.0/8"]
        [[shaping.scope]]
        name = "all"
        of = "destination"
        match = ["{brokers}"]
    """

    (remark,) = config.load(written(tmp_path, text)).shaping.remarks(workers=1)

    assert remark.startswith("shaping.scope.site.match: fits only ")
    assert expected in remark


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[[shaping.scope]]\nname = 's{}'\nof = 'topic'\n", "shaping.scope"),
        ("[[ingest.limit]]\nname = 'l{}'\nof = 'topic'\n", "ingest.limit"),
    ],
)
def test_there_is_room_for_so_many_scopes_and_limits(tmp_path: Path, text: str, key: str) -> None:
    """256 tables of a list are taken, and one more is refused."""
    config.load(written(tmp_path, "".join(text.format(i) for i in range(256))))

    with pytest.raises(ConfigError) as caught:
        config.load(written(tmp_path, "".join(text.format(i) for i in range(257))))
    assert (caught.value.key, "may have 256" in str(caught.value)) == (key, True)


@pytest.mark.parametrize(
    ("meters", "without"),
    [
        ({"max": (1, 1, None), "idle": (0, 1, None)}, ["idle"]),
        ({"max": (1, 1, None), "idle": (0, 1, None), "priority_queue": (0, 1, None)}, []),
        ({"max": (0, 0, None), "idle": (5, 1, 0), "priority_queue": (1, 1, None)}, ["max", "idle"]),
    ],
)
def test_priorities_that_never_get_credit(meters: dict[str, tuple[int, int, int | None]], without: list[str]) -> None:
    """One that can hold none, or may have none, or is guaranteed none where there is no spare."""
    some = {each: MeterSettings(guaranteed=1, burst=1) for each in Priority}
    given = {
        name: MeterSettings(guaranteed=rate, burst=burst, max=most) for name, (rate, burst, most) in meters.items()
    }
    scope = ScopeSettings(name="a", of="host", enabled=True, meters=MetersSettings(**(some | given)))

    assert scope.without_credit == without
    assert ("a" in ShapingSettings(scope=(scope,)).rules.without_relief) == ("max" in without)


def test_the_configurations_in_the_page_on_shaping_are_accepted() -> None:
    """Each example of docs/shaping.md is read without a problem or a remark."""
    page = (SHIPPED.parents[1] / "docs" / "shaping.md").read_text()
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    found = [config.from_document(tomllib.loads(each)) for each in examples]

    assert [(len(each.shaping.scope), len(each.ingest.limit)) for each in found] == [(2, 0), (1, 0), (1, 0), (0, 1)]
    assert [each.shaping.remarks(workers=4) for each in found] == [[], [], [], []]


# ---------------------------------------------------------------------------------------------- retired


def test_an_option_that_is_none_any_longer_is_taken_and_remarked_on(tmp_path: Path) -> None:
    """A file and an environment that still have one mean the same as without, and what holds instead is said."""
    file = written(tmp_path, "[balance]\nlower_boundary = true\ninterval = '30s'\n[sequencer]\nmax_registrations = 7\n")
    environment = {"REMORA_KAFKA_PRODUCERS_PER_ENDPOINT": "3"}

    settings, retired = config.loaded(file, environment)

    assert settings == config.from_document({"balance": {"interval": "30s"}})
    assert retired == [
        "balance.lower_boundary is no option any longer: no queue moves for its load while no worker is busy enough",
        "sequencer.max_registrations is no option any longer: 32 logs are registered side by side",
        "kafka.producers_per_endpoint is no option any longer: topics of an endpoint share one set of connections",
    ]
    assert config.loaded(None, {}).retired == []
    assert set(RETIRED).isdisjoint(dict(config.options()))
