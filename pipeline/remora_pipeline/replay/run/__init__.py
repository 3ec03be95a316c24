"""`remora replay run`: events of a trace sent again, on their own timeline."""
