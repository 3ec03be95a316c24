"""Notifications as tables of Apache Iceberg: the journal of events, and the current objects of each bucket.

Read `commits.py` first (why every event is in the journal once), then `land.py`.
"""
