"""What a session must be granted before it reads."""
