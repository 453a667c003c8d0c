"""`hang`: evidence of a stuck job: saved dumps, stacks and RAS reports, and the live state from /proc, py-spy and RAS."""
