"""The tables of a file: their schema, and the statements that change them."""
