"""How the suite runs: which tests the gate takes, how they share servers and processors, how long each may last."""
