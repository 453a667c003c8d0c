"""One order of causes and consequences: of findings about machines, nodes and logs, and of what ranks observed."""
