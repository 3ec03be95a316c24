"""What is kept of remora's own topics: registry, holds, notifications, peaks."""
