"""How many queues a topic has, what is in the way of their room, and where they lie."""
