"""What other tools print about a machine (nvidia-smi, ibstat, dcgmi, lspci, …), read as partial facts with their lines."""
