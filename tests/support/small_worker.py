"""The least that a supervisor takes for a worker: ready at once, alive, asks for a group, answers, ends when told to.

Run as a program of its own, without any package: it is there in some milliseconds.
"""

import itertools
import json
import socket
import sys

ANSWERS = {
    "use": {},
    "flows": [],
    "addresses": {},
    "metrics": [["remora_owned_shards", "gauge", "", [["remora_owned_shards", {}, 1.0]]]],
    "status": {
        "ready": True,
        "reasons": [],
        "store": {"description": "", "connected": True, "state": "", "damaged": []},
        "ingest": "",
        "in_flight_bytes": 0,
        "shards": [],
        "topics": [],
        "stages": [],
        "buckets": [],
        "members": [],
        "left": [],
        "shaped": [],
    },
}


def main() -> None:
    """Serve the supervisor at the other end of the inherited socket."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    lines = channel.makefile("rb")

    def say(**message: object) -> None:
        channel.sendall(json.dumps(message).encode() + b"\n")

    lines.readline()
    say(type="Ready")
    for line in itertools.chain([b'{"type":"Reload"}'], lines):
        message = json.loads(line)
        if message["type"] in ("Finish", "StopNow"):
            return
        if message["type"] == "Ask":
            say(type="Reply", number=message["number"], body=ANSWERS[message["what"]])
        else:
            say(type="Heartbeat", is_alive=True, store="", held_shards=0, failing_shards=0)
            say(type="WantGroup", group="brokers/a")
            say(type="Shares", shares={"brokers/a": 1000})


if __name__ == "__main__":
    main()
