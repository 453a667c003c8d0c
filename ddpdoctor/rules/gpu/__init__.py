"""`gpu`: devices, their health and the driver below them."""
