"""The syntax tree of a script and the questions that it answers: names, calls, classes, scopes."""
