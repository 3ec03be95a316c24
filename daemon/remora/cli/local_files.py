"""What a configuration names of this host, looked at as the user whom the daemon runs as; nothing is opened or made."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from remora.config import KafkaSettings, Settings

_READ_ONLY = "on a read-only file system, as all are for the unit that no ReadWritePaths= of a drop-in names"

NOT_LOOKED_AT = "not looked at: what is in these files, those that topics name, brokers, receivers and the cluster"


@dataclass(frozen=True, slots=True)
class User:
    """A user with his groups, as files know him."""

    name: str
    uid: int
    gids: frozenset[int]

    @classmethod
    def current(cls) -> User:
        """Who runs this command."""
        return cls(f"user {os.geteuid()}", os.geteuid(), frozenset({os.getegid(), *os.getgroups()}))

    @classmethod
    def named(cls, name: str) -> User:
        """A user of this host. Raises KeyError."""
        found = pwd.getpwnam(name)
        groups = {each.gr_gid for each in grp.getgrall() if name in each.gr_mem}
        return cls(name, found.pw_uid, frozenset({found.pw_gid, *groups}))

    def may(self, status: os.stat_result, wanted: int) -> bool:
        """Whether the mode of a file lets this user do what is `wanted`: 4 to read, 2 to write, 1 to pass through."""
        if self.uid == 0:
            return True
        shift = 6 if status.st_uid == self.uid else 3 if status.st_gid in self.gids else 0
        return (status.st_mode >> shift) & wanted == wanted


@dataclass(frozen=True, slots=True)
class Named:
    """A path that an option names; `is_made` for a directory that the daemon makes itself."""

    option: str
    path: str
    is_directory: bool = False
    wanted: int = 4
    is_made: bool = False


def named_paths(settings: Settings) -> Iterator[Named]:
    """The files and directories that these settings need, without those that nothing uses."""
    if settings.store.kind == "sqlite":
        option = "sqlite.directories" if settings.sqlite.directories else "sqlite.directory"
        for each in settings.sqlite.places:
            yield Named(option, each, is_directory=True, wanted=7, is_made=True)
    else:
        yield Named("rados.conf", settings.rados.conf)
        yield Named("rados.keyring", settings.rados.keyring)
    ingest, kafka = settings.ingest, settings.kafka
    yield Named("ingest.tls_certificate", ingest.tls_certificate)
    yield Named("ingest.tls_key", ingest.tls_key)
    yield Named("ingest.tokens", ingest.tokens)
    yield Named("admin.control_tokens", settings.admin.control_tokens)
    yield Named("credentials.directory", settings.credentials.directory, is_directory=True, wanted=5)
    yield Named("kafka.kerberos_keytab", kafka.kerberos_keytab)
    for each in kafka.client_places:
        yield Named("kafka.client_files", each, is_directory=True, wanted=5)
    if kafka.ca_directories != KafkaSettings().ca_directories:
        for each in kafka.ca_places:
            yield Named("kafka.ca_directories", each, is_directory=True, wanted=5)


def problems(paths: Sequence[Named], user: User) -> list[str]:
    """What is wrong with each of these paths, with its option."""
    return [f"{each.option}: {each.path}: {why}" for each in paths if each.path and (why := _why(each, user))]


def _why(named: Named, user: User) -> str:
    path = Path(named.path)
    for folder in reversed(path.parents):
        try:
            if not user.may(folder.stat(), 1):
                return f"{user.name} may not pass through {folder}"
        except OSError:
            return f"{folder} is missing"
    try:
        status = path.stat()
    except FileNotFoundError:
        if not named.is_made:
            return "missing"
        if not user.may(path.parent.stat(), 3):
            return f"missing, and {user.name} may not make it in {path.parent}"
        return _READ_ONLY if _is_read_only(path.parent) else ""
    except OSError as exc:
        return f"cannot be looked at: {exc.strerror}"
    if stat.S_ISDIR(status.st_mode) != named.is_directory:
        return "not a directory" if named.is_directory else "not a file"
    if not user.may(status, named.wanted):
        return f"{user.name} may not {'write to' if named.wanted & 2 else 'read'} it"
    return _READ_ONLY if named.wanted & 2 and _is_read_only(path) else ""


def shared(directories: Sequence[str]) -> Iterator[str]:
    """Each of the store's directories that lies on the file system of one before it, in a sentence."""
    first_on: dict[int, str] = {}
    for each in directories:
        path = Path(each)
        is_or_will_be_in = next(folder for folder in (path, *path.parents) if folder.exists())
        before = first_on.setdefault(is_or_will_be_in.stat().st_dev, each)
        if before != each:
            yield f"sqlite.directories: {each}: on the same file system as {before}: is its disk mounted?"


def _is_read_only(path: Path) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
