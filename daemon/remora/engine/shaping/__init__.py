"""How a worker waits for credit to send, and gives back what it did not need."""
