"""Commands and options, nothing else."""
