"""Real Apache Kafka from its jars: one process is broker and controller (KRaft); three of them are a quorum."""

import base64
import json
import os
import secrets
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

from devkit.clusters import daemons
from devkit.clusters.kerberos_realm import KDC, Realm
from devkit.clusters.state import DevError, State
from devkit.paths import SCRIPTS

HERE = SCRIPTS / "dev"
PLAIN_LISTENERS = ["plaintext", "controller"]
SECURE_LISTENERS = ["ssl", "sasl_plaintext", "sasl_ssl", "mutual_ssl"]
KERBEROS_LISTENERS = ["gssapi", "gssapi_brief"]
TOKEN_LISTENERS = ["oauth", "oauth_brief"]
PROXIED, DOOR = "proxied", "proxied/door"
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
JAAS = "org.apache.kafka.common.security"

SETTINGS = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listeners={listeners}
advertised.listeners={advertised}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,MUTUAL_SSL:SSL,PROXIED:PLAINTEXT,GSSAPI:SASL_PLAINTEXT,GSSAPI_BRIEF:SASL_PLAINTEXT,OAUTH:SASL_PLAINTEXT,OAUTH_BRIEF:SASL_PLAINTEXT
log.dirs={data}
# As in production: a topic that nobody made is an error, not a new topic with one partition.
auto.create.topics.enable=false
default.replication.factor={copies}
min.insync.replicas={quorum}
offsets.topic.replication.factor={copies}
offsets.topic.num.partitions=10
transaction.state.log.replication.factor={copies}
transaction.state.log.min.isr={quorum}
transaction.state.log.num.partitions=10
share.coordinator.state.topic.replication.factor={copies}
share.coordinator.state.topic.min.isr={quorum}
# Small and quick: a killed broker is noticed after three seconds (Kafka's default is nine).
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
log.cleaner.dedupe.buffer.size=16777216
num.io.threads=4
"""

SECURITY = """\
ssl.keystore.type=PEM
ssl.keystore.location={tls}/broker.pem
ssl.truststore.type=PEM
ssl.truststore.location={tls}/ca.pem
# This listener lets in who shows a certificate that the CA has signed.
listener.name.mutual_ssl.ssl.client.auth=required
sasl.enabled.mechanisms={mechanisms}
"""

KERBEROS = """\
sasl.kerberos.service.name=kafka
listener.name.gssapi.sasl.enabled.mechanisms=GSSAPI
listener.name.gssapi.gssapi.sasl.jaas.config={jaas}
listener.name.sasl_ssl.gssapi.sasl.jaas.config={jaas}
listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,GSSAPI
# Here a broker hangs up on a client that has not logged in again for a second.
listener.name.gssapi_brief.sasl.enabled.mechanisms=GSSAPI
listener.name.gssapi_brief.gssapi.sasl.jaas.config={jaas}
listener.name.gssapi_brief.connections.max.reauth.ms=1000
"""

TOKEN_ISSUER, TOKEN_AUDIENCE = "https://tokens.remora.test", "kafka"

TOKENS = """\
sasl.oauthbearer.jwks.endpoint.url=file://{folder}/jwks.json
# Without this Kafka 4.1.1 checks no signature: its default validator is then that of clients.
sasl.oauthbearer.jwt.validator.class=org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator
sasl.oauthbearer.expected.issuer={issuer}
sasl.oauthbearer.expected.audience={audience}
listener.name.oauth.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.oauth.oauthbearer.sasl.jaas.config={module}
listener.name.oauth.oauthbearer.sasl.server.callback.handler.class={handler}
# Here a broker hangs up on a client that has not logged in again for some seconds.
listener.name.oauth_brief.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.oauth_brief.oauthbearer.sasl.jaas.config={module}
listener.name.oauth_brief.oauthbearer.sasl.server.callback.handler.class={handler}
listener.name.oauth_brief.connections.max.reauth.ms=10000
"""
"""Kafka's own validator, with the key of a token server that tests run themselves."""

LOG4J = """\
rootLogger.level = ${sys:remora.level:-info}
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %-5p %c{1} %m%n
"""


class Cluster:
    """One named cluster of one or three brokers, called broker.1, broker.2 ..."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.realm = Realm(state)

    def up(self, brokers: int, options: list[str], heap: str, extra: dict[str, str]) -> None:
        """Make the cluster, or start the brokers that are not running of one that was made before.

        `options` add listeners: "sasl_ssl" those with TLS and with a user; "kerberos" those with GSSAPI, and a KDC;
        "oauth" those with OAUTHBEARER; "proxied" one that is advertised at a port where nobody listens: a proxy of the
        caller's is to.
        """
        if not self.state.is_complete():
            self.down(keep=False)
            choice = {"sasl_ssl": SECURE_LISTENERS, "kerberos": KERBEROS_LISTENERS, "proxied": [PROXIED]}
            choice["oauth"] = TOKEN_LISTENERS
            kinds = PLAIN_LISTENERS + [kind for option in options for kind in choice[option]]
            self._create(brokers, kinds, heap, extra)
            return
        daemons.thaw(self.state)
        stopped = [name for name in self.state.env()["daemons"] if name not in daemons.running(self.state)]
        for name in stopped:
            self.start(name, wait=False)
        for name in stopped:
            self._wait_ready(name)

    def down(self, keep: bool) -> None:
        """Stop every broker, politely when the data is to be used again, and remove the folder unless kept."""
        daemons.stop(self.state, list(daemons.running(self.state)), signal.SIGTERM if keep else signal.SIGKILL)
        if not keep:
            self.state.remove()

    def start(self, name: str, wait: bool = True) -> None:
        """Start one broker that was stopped; returns when it takes requests."""
        self.check_name(name)
        if name == KDC:
            self.realm.start()
        else:
            argv = [*self.java((self.state / "heap").read_text()), "kafka.Kafka", str(self._settings(name))]
            daemons.start(self.state, name, argv)
        if wait:
            self._wait_ready(name)
        daemons.refresh_env(self.state)

    def stop(self, name: str, signum: signal.Signals) -> None:
        """Send a signal to one broker; the ones that end it are waited for."""
        self.check_name(name)
        daemons.hurt(self.state, name, signum)

    def check_name(self, name: str) -> None:
        known = self.state.env()["daemons"] if self.state.is_complete() else [name]
        if name not in known:
            raise DevError(f"cluster {self.state.name!r} has no daemon {name!r}; it has {', '.join(known)}")

    def java(self, heap: str = "256m", quiet: bool = False) -> list[str]:
        """A Java command line that only lacks the class and its arguments."""
        found = subprocess.run([HERE / "kafka-jars"], stdout=subprocess.PIPE, text=True, check=False)
        if found.returncode != 0:
            raise DevError("no Kafka to run")
        jars = found.stdout.strip()
        log4j = f"-Dlog4j2.configurationFile={self.state / 'log4j2.properties'}"
        level = ["-Dremora.level=warn"] if quiet else []
        realm = [f"-Djava.security.krb5.conf={self.realm.describe()['krb5_config']}"] if self.realm.exists() else []
        tuned = os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", "").split()  # as for Kafka's own scripts
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{self.state / 'oauth'}/jwks.json"
        return ["java", f"-Xmx{heap}", *tuned, log4j, *level, *realm, allowed, "-cp", f"{jars}/*"]

    # --- making ------------------------------------------------------------------------------------------

    def _create(self, brokers: int, kinds: list[str], heap: str, extra: dict[str, str]) -> None:
        state = self.state
        (state / "log").mkdir(parents=True)
        state.path.chmod(0o700)
        (state / "log4j2.properties").write_text(LOG4J)
        (state / "heap").write_text(heap)
        names = [f"broker.{node}" for node in range(1, brokers + 1)]
        secure, doors = "ssl" in kinds, [DOOR] if PROXIED in kinds else []
        kerberos = [KDC] if KERBEROS_LISTENERS[0] in kinds else []
        ports = state.reserve_ports([*kerberos, *(f"{name}/{kind}" for name in names for kind in kinds + doors)])
        password = secrets.token_hex(12)
        if secure:
            self._make_certificates()
        if TOKEN_LISTENERS[0] in kinds:
            self._make_token_key()
        if kerberos:
            self.realm.create(ports[KDC])
        for name in names:
            self._write_settings(name, names, kinds, ports, password, extra)
        self._format(names, password if secure else "")
        for name in kerberos + names:
            self.start(name, wait=False)
        for name in kerberos + names:
            self._wait_ready(name)
        state.write_env(self._describe(names, kinds, ports, password))

    def _write_settings(
        self, name: str, names: list[str], kinds: list[str], ports: dict[str, int], password: str, extra: dict[str, str]
    ) -> None:
        urls = {kind: f"{kind.upper()}://127.0.0.1:{ports[f'{name}/{kind}']}" for kind in kinds}
        door = {PROXIED: f"PROXIED://127.0.0.1:{ports[f'{name}/{DOOR}']}"} if PROXIED in kinds else {}
        text = SETTINGS.format(
            node=name[7:],
            voters=",".join(f"{other[7:]}@127.0.0.1:{ports[f'{other}/controller']}" for other in names),
            listeners=",".join(urls.values()),
            advertised=",".join(url for kind, url in (urls | door).items() if kind != "controller"),
            data=self.state / f"data/{name}",
            copies=len(names),
            quorum=len(names) // 2 + 1,
        )
        if "ssl" in kinds:
            text += SECURITY.format(tls=self.state / "tls", mechanisms=",".join(MECHANISMS))
            for listener in ("sasl_plaintext", "sasl_ssl"):
                jaas = f"listener.name.{listener}.{{}}.sasl.jaas.config={JAAS}.{{}} required{{}};\n".format
                text += jaas("plain", "plain.PlainLoginModule", f' user_dev="{password}"')
                text += jaas("scram-sha-256", "scram.ScramLoginModule", "")
                text += jaas("scram-sha-512", "scram.ScramLoginModule", "")
        if KERBEROS_LISTENERS[0] in kinds:
            text += KERBEROS.format(jaas=self.realm.jaas())
        if TOKEN_LISTENERS[0] in kinds:
            text += TOKENS.format(
                folder=self.state / "oauth", issuer=TOKEN_ISSUER, audience=TOKEN_AUDIENCE,
                module=f"{JAAS}.oauthbearer.OAuthBearerLoginModule required;",
                handler=f"{JAAS}.oauthbearer.OAuthBearerValidatorCallbackHandler",
            )  # fmt: skip
        text += "".join(f"{key}={value}\n" for key, value in extra.items())
        self._settings(name).write_text(text)

    def _format(self, names: list[str], password: str) -> None:
        """Give each broker its empty log folder; the cluster's id and the SCRAM user are written there."""
        cluster_id = base64.urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).decode().rstrip("=")
        argv = [*self.java(), "kafka.tools.StorageTool", "format", "--cluster-id", cluster_id]
        for mechanism in MECHANISMS[1:] if password else []:
            argv += ["--add-scram", f"{mechanism}=[name=dev,password={password}]"]
        running = {
            name: subprocess.Popen(
                [*argv, "--config", str(self._settings(name))],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for name in names
        }
        for name, process in running.items():
            output, _ = process.communicate()
            if process.returncode != 0:
                raise DevError(f"formatting {name} failed:\n{output[-2000:]}")

    def _make_certificates(self) -> None:
        """A CA, the brokers' certificate and a client's signed by it, and a CA that has signed one client's only."""
        script = """
            mkdir -p "$1"; cd "$1"; umask 077
            new_key="openssl req -newkey rsa:2048 -nodes"
            for ca in ca other-ca; do
                $new_key -x509 -days 30 -subj "/CN=remora dev $ca" -keyout $ca.key -out $ca.pem
            done
            $new_key -subj /CN=127.0.0.1 -keyout broker.key -out broker.csr
            printf 'subjectAltName=IP:127.0.0.1,DNS:localhost\n' >broker.ext
            openssl x509 -req -in broker.csr -CA ca.pem -CAkey ca.key -CAcreateserial \
                -days 30 -extfile broker.ext -out broker.crt
            cat broker.key broker.crt >broker.pem
            for client in client stranger; do
                case $client in client) ca=ca ;; *) ca=other-ca ;; esac
                $new_key -subj /CN=$client -keyout $client.key -out $client.csr
                openssl x509 -req -in $client.csr -CA $ca.pem -CAkey $ca.key -CAcreateserial -days 30 -out $client.crt
            done
        """
        tls = str(self.state / "tls")
        done = subprocess.run(["sh", "-euc", script, "sh", tls], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DevError(f"openssl failed:\n{done.stderr[-2000:]}")

    def _make_token_key(self) -> None:
        """The key of a token server, and the set of its public keys (JWKS) that brokers read."""
        folder = self.state / "oauth"
        folder.mkdir(mode=0o700)
        key = folder / "key.pem"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], capture_output=True, check=True)
        asked = ["openssl", "rsa", "-in", str(key), "-noout", "-modulus"]
        shown = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        modulus = base64.urlsafe_b64encode(bytes.fromhex(shown.strip().partition("=")[2])).decode().rstrip("=")
        public = {"kty": "RSA", "kid": "remora", "use": "sig", "alg": "RS256", "n": modulus, "e": "AQAB"}
        (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))

    def _describe(self, names: list[str], kinds: list[str], ports: dict[str, int], password: str) -> dict[str, Any]:
        bootstrap = {kind: ",".join(f"127.0.0.1:{ports[f'{name}/{kind}']}" for name in names) for kind in kinds}
        values = {"name": self.state.name, "state": str(self.state.path), "bootstrap": bootstrap["plaintext"]}
        if "ssl" in kinds:
            values |= {f"{kind}_bootstrap": bootstrap[kind] for kind in SECURE_LISTENERS}
            values |= {"client": str(self.state / "tls/client"), "stranger": str(self.state / "tls/stranger")}
            values |= {"user": "dev", "password": password, "mechanisms": ",".join(MECHANISMS)}
            values |= {"ca": str(self.state / "tls/ca.pem"), "other_ca": str(self.state / "tls/other-ca.pem")}
        kerberos = [KDC] if KDC in ports else []
        if kerberos:
            values |= {f"{kind}_bootstrap": bootstrap[kind] for kind in KERBEROS_LISTENERS} | self.realm.describe()
        if TOKEN_LISTENERS[0] in kinds:
            values |= {f"{kind}_bootstrap": bootstrap[kind] for kind in TOKEN_LISTENERS}
            values |= {"token_key": str(self.state / "oauth/key.pem")}
            values |= {"token_issuer": TOKEN_ISSUER, "token_audience": TOKEN_AUDIENCE}
        if PROXIED in kinds:
            values["proxied_bootstrap"] = ",".join(f"127.0.0.1:{ports[f'{name}/{DOOR}']}" for name in names)
        return {
            **values,
            "ports": ports,
            "logs": str(self.state / "log"),
            "daemons": kerberos + names,
            "pids": daemons.running(self.state),
        }

    # --- one broker ----------------------------------------------------------------------------------------

    def _settings(self, name: str) -> Path:
        return self.state / f"{name}.properties"

    def _wait_ready(self, name: str) -> None:
        daemons.wait_for(f"answer from {name}", lambda: self._is_ready(name), 240, self.state, [name])

    def _is_ready(self, name: str) -> bool:
        """A broker opens its ports once the controllers know it and let it in, one after the other."""
        for each, port in self.state.ports().items():
            if each == name or (each.startswith(f"{name}/") and not each.endswith(DOOR)):
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                except OSError:
                    return False
        return True
