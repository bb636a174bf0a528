"""The goodput model."""
