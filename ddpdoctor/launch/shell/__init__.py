"""Shell scripts: their launch lines, with what is certain of the variables there."""
