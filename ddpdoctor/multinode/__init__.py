"""The multi-node session: before the job starts, its nodes connect at the job's own address and port.

Standard library only. Data from the network is never executed or unpickled: it is JSON lines of limited size.
"""
