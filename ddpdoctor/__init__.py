"""ddpdoctor: what is wrong with this PyTorch distributed job, where, and what to type instead."""

__version__ = "0.1.0"
