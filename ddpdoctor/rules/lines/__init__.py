"""Causes of machines as a Kubernetes manifest shows them, beside their rules; loaded only when one is judged."""
