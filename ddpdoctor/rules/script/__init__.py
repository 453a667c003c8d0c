"""Faults of training scripts that their source shows."""
