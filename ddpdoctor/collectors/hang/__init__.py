"""`hang`: what the ranks of a stuck job left (dumps, stacks, RAS answers), and what /proc, py-spy and RAS say of them now."""
