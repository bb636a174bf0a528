"""Solvers that policies share."""
