"""Analysis of training scripts."""
