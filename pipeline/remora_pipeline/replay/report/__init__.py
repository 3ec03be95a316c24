"""What a verification found, as one page that anybody can open, and as pictures. Needs no Spark."""
