"""LAUNCH: Kubernetes manifests against the launch lines in them."""
