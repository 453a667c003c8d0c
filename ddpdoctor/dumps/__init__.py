"""Flight Recorder dumps, stacks and answers of NCCL's RAS: data-only readers and the comparison of calls."""
