"""Use cases without Typer and without printing."""
