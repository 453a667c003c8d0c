"""What the looks at a rehearsal share: from differences and observations to findings. The looks are in the causes' own files."""
