"""Orders causes and consequences: findings about machines, nodes and logs, and the ranks' observations."""
