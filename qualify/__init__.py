"""Release qualification of composed LLM serving images."""

__version__ = "0.1.0"
