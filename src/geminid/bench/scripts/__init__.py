"""Training scripts that benchmarks run as real jobs."""
