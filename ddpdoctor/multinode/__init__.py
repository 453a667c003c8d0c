"""The multi-node session: the nodes of a job find each other at the job's own address and port, before the job does.

Standard library only. Nothing that comes over the network is executed or unpickled: lines of JSON, limited in size.
"""
