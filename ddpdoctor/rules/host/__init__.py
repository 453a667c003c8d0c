"""HOST: limits, shared memory, memory, container, file systems, and the clock."""
