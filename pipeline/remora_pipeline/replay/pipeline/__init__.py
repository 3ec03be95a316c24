"""What is done with notifications behind Kafka: landed as Parquet, and turned into the current objects of each bucket.

Read `directory.py` first (what lies in a landing's folder, and why an event is in it once), then `land.py`.
"""
