"""What is watched of a running service: curves of jobs, who held which slot when, and changes as they happen.

Everything here reads the published state from outside; the service itself does not know that it is watched.
"""
