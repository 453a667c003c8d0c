"""`gpu`: GPUs, their health and their driver."""
