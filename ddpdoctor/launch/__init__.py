"""Launch commands and job files: grammar, shell, manifests, edits."""
