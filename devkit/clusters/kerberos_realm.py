"""A Kerberos realm of one KDC (MIT, Debian's krb5-kdc), without root: principals, keytabs, and the KDC itself."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from devkit.clusters import daemons
from devkit.clusters.state import DevError, State

KDC = "kdc"
REALM = "REMORA.TEST"
BROKER = f"kafka/127.0.0.1@{REALM}"
CLIENTS = ("remora", "brief", "stale")
"""`brief` gets tickets of a few seconds, and the key of `stale` was changed after its keytab was written."""

KRB5_CONF = """\
[libdefaults]
default_realm = {realm}
dns_lookup_realm = false
dns_lookup_kdc = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
[realms]
{realm} = {{
    kdc = 127.0.0.1:{port}
}}
"""

KDC_CONF = """\
[kdcdefaults]
kdc_listen = ""
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
{realm} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    max_life = 1h
    supported_enctypes = aes256-cts:normal
}}
[logging]
kdc = FILE:{log}
"""

PRINCIPALS = f"""\
addprinc -randkey {BROKER}
addprinc -randkey other/127.0.0.1@{REALM}
addprinc -randkey remora
addprinc -randkey brief
addprinc -randkey stale
modprinc -maxlife "4 seconds" brief
ktadd -k {{folder}}/broker.keytab {BROKER}
ktadd -k {{folder}}/remora.keytab remora
ktadd -k {{folder}}/brief.keytab brief
ktadd -k {{folder}}/stale.keytab -norandkey stale
cpw -randkey stale
"""


class Realm:
    """The realm of one cluster; its files lie in the folder kerberos/ of the cluster's state."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.folder = state / "kerberos"

    def exists(self) -> bool:
        return self.folder.exists()

    def create(self, port: int) -> None:
        """Make the KDC's database, a principal for the brokers and those for clients, each with its keytab."""
        self.folder.mkdir(mode=0o700)
        configure_kdc(self.folder, port, database=self.folder, log=self.state / f"log/{KDC}.log")
        self._run(["kdb5_util", "create", "-s", "-W", "-r", REALM], "password\npassword\n")
        self._run(["kadmin.local"], PRINCIPALS.format(folder=self.folder))
        for name in ("broker", *CLIENTS):
            if not self.keytab(name).exists():
                raise DevError(f"kadmin.local made no keytab for {name}")

    def start(self) -> None:
        daemons.start(
            self.state, KDC, [kerberos_program("krb5kdc"), "-n"], env=dict(os.environ) | kdc_environment(self.folder)
        )

    def keytab(self, name: str) -> Path:
        return self.folder / f"{name}.keytab"

    def describe(self) -> dict[str, Any]:
        """What clients need to know."""
        keytabs = {f"{name}_keytab": str(self.keytab(name)) for name in CLIENTS}
        return {"krb5_config": str(self.folder / "krb5.conf"), "realm": REALM, **keytabs}

    def jaas(self) -> str:
        """How a broker lets clients in; it needs no KDC for that, only its own key."""
        module = "com.sun.security.auth.module.Krb5LoginModule required"
        what = "useKeyTab=true storeKey=true isInitiator=false"
        return f'{module} {what} keyTab="{self.keytab("broker")}" principal="{BROKER}";'

    def _run(self, argv: list[str], text: str) -> None:
        done = subprocess.run(
            [kerberos_program(argv[0]), *argv[1:]],
            input=text,
            env=dict(os.environ) | kdc_environment(self.folder),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise DevError(f"{argv[0]} failed:\n{done.stderr[-2000:]}")


def configure_kdc(into: Path, port: int, *, database: Path, log: Path) -> None:
    """Writes the configuration of a KDC at this port, and of its clients; `database` is the realm's folder."""
    places = {"realm": REALM, "port": port, "folder": database, "log": log}
    (into / "krb5.conf").write_text(KRB5_CONF.format(**places))
    (into / "kdc.conf").write_text(KDC_CONF.format(**places))


def kdc_environment(folder: Path) -> dict[str, str]:
    """The variables by which Kerberos' programs find the configuration in this folder."""
    return {"KRB5_CONFIG": str(folder / "krb5.conf"), "KRB5_KDC_PROFILE": str(folder / "kdc.conf")}


def kerberos_program(name: str) -> str:
    """The path of one of Debian's Kerberos programs."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise DevError(f"{name} is missing: Debian's packages krb5-kdc and krb5-admin-server have it")
    return found
