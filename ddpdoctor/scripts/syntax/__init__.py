"""The syntax tree of a script and what can be looked up in it: names, calls, classes, scopes."""
