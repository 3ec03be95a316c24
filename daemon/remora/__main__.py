"""The `remora` command."""

from __future__ import annotations

from remora.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
