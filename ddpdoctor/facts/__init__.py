"""What is known about a machine, a launch, a job: types only, standard library only."""
