"""Launch lines as facts: words with their places, layers of launchers, and the settings of torchrun."""
