"""Kubernetes manifests: their launch lines and the pods that run them."""
