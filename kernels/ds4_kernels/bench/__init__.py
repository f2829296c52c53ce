"""How fast the C128A metadata kernels are on this GPU: ``python -m ds4_kernels.bench``."""
