"""Causes of other areas as dumps, stacks and the ranks of a stuck job show them."""
