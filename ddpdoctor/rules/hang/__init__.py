"""Causes of other areas, as seen in dumps, stacks and the ranks of a stuck job."""
