"""Spark jobs that replay real traffic against the daemon, prove from Kafka what arrived, and land what did.

Read `layout.py` first (what lies where, and what each file says), then `shape.py` (the columns of every table), then
the job of a command: `prepare/`, `run/`, `verify/`, `report/` and `pipeline/` have one each. A job opens a session,
reads, calls functions from DataFrame to DataFrame that stand beside it, and writes; what runs inside tasks are plain
functions of importable modules. Nothing uses `sc` or an RDD, so that the jobs run under Spark Connect too.

The daemon needs none of this: only `remora replay` and `remora pipeline` import this package.
"""
