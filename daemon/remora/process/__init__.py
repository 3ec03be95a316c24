"""What the supervisor and the workers use as processes of one host: pipe, sockets, metrics as values, signs of life."""
