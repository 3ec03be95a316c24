"""Sends commands to a cluster's monitors: JSON lines on standard input, JSON answers on standard output.

Usage: python3 mon_commands.py CONF [PATIENCE_S] < commands

Runs on the rados binding and the Python of the cluster's own release, in one process: a start of the `ceph`
program costs half a second, and bringing up a cluster takes thirty commands. The first command that fails
ends it with that command's message.
"""

import json
import sys

import rados


def main() -> int:
    conf, patience_s = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "30"
    options = {"client_mount_timeout": patience_s, "rados_mon_op_timeout": patience_s}
    with rados.Rados(conffile=conf, conf=options) as cluster:
        for line in sys.stdin:
            code, output, message = cluster.mon_command(line, b"")
            if code < 0:
                print(f"{line.strip()}: {message} ({code})", file=sys.stderr)
                return 1
            print(json.dumps(json.loads(output)) if output[:1] in (b"{", b"[") else json.dumps(output.decode()))
    return 0


sys.exit(main())
