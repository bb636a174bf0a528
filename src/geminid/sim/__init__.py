"""The simulator's side of the line: what is read from files."""
