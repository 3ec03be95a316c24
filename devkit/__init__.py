"""What tests, benchmarks, chaos and the demo share: servers, processes, loads, readers of what arrived, and verdicts.

It sees the daemon as a user does; pyproject.toml names each module that must look deeper. `clusters` are real servers,
`processes` real daemons, `receivers` endpoints under a test's control, `entries` what stands in queues, `readers` what
arrived, `verdicts` judges that share nothing with the daemon. `bench`, `chaos`, `demo` and `release` are what the
commands of the same names in `scripts/` run.
"""
