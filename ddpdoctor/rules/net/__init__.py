"""What is wrong with the network of one node: names, addresses, ports, the interfaces that NCCL and Gloo choose."""
