"""`topo`: NVLink, fabric and peer access."""
