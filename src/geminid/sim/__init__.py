"""The simulator: virtual time, simulated jobs, and what is read from files."""
