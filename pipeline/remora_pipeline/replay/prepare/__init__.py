"""Logs that object stores write, as events: `remora replay prepare`.

`job.py` is the table of contents. `formats/` says what a line of each kind of log means, `tables.py` the same for CSV
and Parquet; `sources.py` finds and opens the files, `task.py` goes through them within Spark's tasks, and
`frames.py` puts what they say in order.
"""
