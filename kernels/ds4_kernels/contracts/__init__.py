"""The C128A metadata contract as a test suite for any implementation: ``python -m ds4_kernels.contracts``."""
