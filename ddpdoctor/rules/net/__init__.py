"""`net`: names, addresses, ports, RDMA, and the interfaces that NCCL and Gloo choose."""
