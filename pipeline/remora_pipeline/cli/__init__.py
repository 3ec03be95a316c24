"""The commands that `remora` has from this distribution."""
