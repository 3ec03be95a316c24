"""What is done with events beside delivering them: replayed, landed in tables, reconciled; and policies, simulated.

The distribution `remorad-pipeline`. The command `remora` finds what `cli/` has in the entry points `remora.commands`.
"""
