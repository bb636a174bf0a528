"""Policies as optimisation problems over time fractions (Gavel): the problems, their solvers, and the rounds."""
