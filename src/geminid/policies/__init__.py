"""Scheduling policies: one per file, each with its paper, its objective and its deviations."""
