"""VERSION: versions and builds of torch, CUDA, NCCL, and the driver."""
