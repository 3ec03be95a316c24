"""What the ingest API takes, when it is stored, and where notifications send it."""
