"""ENV: the environment variables of launchers, torch, NCCL, Gloo, and CUDA."""
