"""What is wrong in training scripts, by what their text says."""
