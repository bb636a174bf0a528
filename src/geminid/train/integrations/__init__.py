"""Training frameworks made elastic; scripts import them as ``geminid.accelerate``."""
