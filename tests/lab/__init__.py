"""Several hosts, a Slurm cluster and MPI launchers on one machine, for any test that needs them."""
