"""Shell scripts: their launch lines, with the certain values of variables."""
