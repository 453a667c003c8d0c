"""What runs inside the ranks of a rehearsal: standard library and torch only, for the interpreter of the launch line.

The files are copied into a folder on PYTHONPATH, because that interpreter may not have ddpdoctor.
"""
