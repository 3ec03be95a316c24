"""Topics, and what is kept of them: holds, notifications, peaks."""
