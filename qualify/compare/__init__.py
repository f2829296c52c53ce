"""Compares what two servers answered: pure functions of transcripts, no I/O, no torch."""
