"""Launch lines as facts: words with their places, layers of launchers, and what torchrun makes of them."""
