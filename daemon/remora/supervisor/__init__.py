"""The process that keeps one worker process per core alive, and speaks for all of them.

It opens no store and no connection to Kafka: whatever can hang or crash does so in a worker, which is then replaced.
The first workers are forked before it has an event loop, later ones are new interpreters: either inherit their pipe and
the sockets that events come in by.
"""
