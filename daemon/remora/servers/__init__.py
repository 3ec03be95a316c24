"""What others reach remora by: the admin server, and systemd's notifications."""
