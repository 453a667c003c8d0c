"""`topo`: NVLink, the NVLink fabric, peer access and PCIe."""
