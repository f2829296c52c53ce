"""DeepSeek V4 C128A metadata kernels, their contracts, faults for control arms, and CPU operators."""

__version__ = "0.1.0"
