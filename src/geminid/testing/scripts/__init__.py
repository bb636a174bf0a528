"""Training scripts for tests and benchmarks."""

from pathlib import Path

#: A real training job whose computation is a sleep; it stands alone and may be copied elsewhere.
PRETENDED_ACCELERATOR = Path(__file__).with_name("pretended_accelerator.py")
