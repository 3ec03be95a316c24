"""The process that keeps one worker process per core alive, and speaks for all of them.

It opens no store and no connection to Kafka: whatever can hang or crash does so in a worker, which is then replaced.
Nothing here is forked: a worker is a new interpreter that inherits its pipe and the sockets that events come in by.
"""

from remora.supervisor.supervisor import run

__all__ = ["run"]
