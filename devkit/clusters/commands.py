"""What dev-ceph and dev-kafka have in common on the command line."""

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from devkit.clusters import daemons
from devkit.clusters.state import DevError, State


class Cluster(Protocol):
    """What the shared commands need of a cluster."""

    state: State

    def down(self, keep: bool) -> None: ...
    def start(self, name: str, wait: bool = True) -> None: ...
    def stop(self, name: str, signum: signal.Signals) -> None: ...


class Parser:
    """An argument parser whose every command knows its function and takes --name."""

    def __init__(self, manual: str, name_help: str) -> None:
        self._parser = argparse.ArgumentParser(description=manual, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._shared = argparse.ArgumentParser(add_help=False)
        self._shared.add_argument("--name", help=name_help)
        self._commands = self._parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def everywhere(self, *names: str, **settings: object) -> None:
        """An option that all commands take; call it before they are added."""
        self._shared.add_argument(*names, **settings)  # type: ignore[arg-type]

    def command(self, name: str, function: Callable[..., int], text: str) -> argparse.ArgumentParser:
        added = self._commands.add_parser(name, parents=[self._shared], help=text, description=text)
        added.set_defaults(function=function)
        return added

    def daemon_commands(self, daemon_names: str) -> None:
        """down, env, start, stop and restart."""
        down = self.command("down", _down, "stop a cluster and remove its data")
        down.add_argument("--keep", action="store_true", help="keep the data, for a later `up`")
        env = self.command("env", _env, "print the cluster's variables for a shell's eval")
        env.add_argument("--json", action="store_true", help="print env.json instead")
        start = self.command("start", _start, f"start one daemon: {daemon_names}")
        start.add_argument("--no-wait", action="store_true", help="do not wait until the daemon serves")
        stop = self.command("stop", _stop, f"stop one daemon, or send it a signal: {daemon_names}")
        restart = self.command("restart", _restart, f"stop and start one daemon: {daemon_names}")
        for one in (start, stop, restart):
            one.add_argument("daemon")
        stop.add_argument("--signal", default="TERM", choices=["TERM", "KILL", "INT", "STOP", "CONT"])
        restart.add_argument("--signal", default="TERM", choices=["TERM", "KILL", "INT"])

    def run(self, find: Callable[[argparse.Namespace], Cluster], unlocked: Sequence[str] = ()) -> int:
        """Run the chosen command; what goes wrong becomes one message and exit code 1."""
        args = self._parser.parse_args()
        try:
            cluster = find(args)
            if args.command in ("env", "status", *unlocked):
                return int(args.function(cluster, args))
            with cluster.state.locked():
                return _up(cluster, args) if args.command == "up" else int(args.function(cluster, args))
        except DevError as error:
            print(f"{self._parser.prog}: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130


def print_daemons(state: State) -> int:
    """One line per daemon; 3 when one that should run does not."""
    expected, pids = state.env()["daemons"], daemons.running(state)
    for name in expected:
        print(f"{name:8} {'pid ' + str(pids[name]) if name in pids else 'stopped'}")
    return 0 if set(expected) <= set(pids) else 3


def pairs(texts: list[str]) -> dict[str, str]:
    """["a=b"] becomes {"a": "b"}."""
    for text in texts:
        if "=" not in text:
            raise DevError(f"--config {text}: expected K=V")
    return dict(text.split("=", 1) for text in texts)


def _up(cluster: Cluster, args: argparse.Namespace) -> int:
    try:
        args.function(cluster, args)
    except BaseException:  # Ctrl-C too: of a cluster that is not finished nothing keeps running; its logs stay
        if not cluster.state.is_complete():
            daemons.stop(cluster.state, list(daemons.running(cluster.state)), signal.SIGKILL)
        raise
    print(cluster.state / "env.json")
    return 0


def _down(cluster: Cluster, args: argparse.Namespace) -> int:
    cluster.down(args.keep)
    return 0


def _env(cluster: Cluster, args: argparse.Namespace) -> int:
    cluster.state.env()  # says what to do when there is no such cluster
    print((cluster.state / ("env.json" if args.json else "env")).read_text(), end="")
    return 0


def _start(cluster: Cluster, args: argparse.Namespace) -> int:
    cluster.start(args.daemon, wait=not args.no_wait)
    return 0


def _stop(cluster: Cluster, args: argparse.Namespace) -> int:
    cluster.stop(args.daemon, signal.Signals[f"SIG{args.signal}"])
    return 0


def _restart(cluster: Cluster, args: argparse.Namespace) -> int:
    cluster.stop(args.daemon, signal.Signals[f"SIG{args.signal}"])
    cluster.start(args.daemon)
    return 0
