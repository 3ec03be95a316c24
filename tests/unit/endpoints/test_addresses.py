"""Whether an address is one of this host's, which only its kernel knows."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from devkit.processes.programs import ENVIRONMENT, program

OWN, OTHER = "10.9.8.7", "10.9.8.6"

CODE = f"""
from remora.endpoints.dial import refusal
from remora.policy.delivery.destinations import read_rules

for listener in ("0.0.0.0", "{OWN}"):
    rules = read_rules((), ("*",), [(listener, 9750)])
    for address, port in (("{OWN}", 9750), ("{OWN}", 9751), ("{OTHER}", 9750)):
        print(refusal("host", address, port, rules, by_operator=True) or "passes")
"""


def test_an_address_of_this_host_beside_loopback_is_its_own() -> None:
    """The daemon's port is denied by each address that the host has, and by no other host's.

    The host is a network of the test's own, which has the one address whatever the machine has.
    """
    alone = [program("unshare", "util-linux"), "--net", *(["--user", "--map-root-user"] if os.geteuid() else [])]
    if "CI" not in os.environ and subprocess.run([*alone, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs to be allowed a network of its own")
    addresses = f"ip address add {OWN}/24 dev lo && ip link set lo up"
    command = [*alone, "sh", "-c", f'{addresses} && exec "$@"', "sh", sys.executable, "-c", CODE]

    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)

    assert done.stdout.splitlines() == 2 * ["the endpoint is this daemon itself", "passes", "passes"], done.stderr
