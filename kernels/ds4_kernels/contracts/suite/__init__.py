"""The checks, one file for each invariant; run by ``python -m ds4_kernels.contracts``."""
