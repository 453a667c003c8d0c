"""HOST: limits, shared memory, memory, container, file systems, clock."""
