"""What explains what: one order of causes and consequences."""
