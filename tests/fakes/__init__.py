"""A stand-in for libnvidia-ml.so.1, built from node profiles."""
