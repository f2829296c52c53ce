"""Judges transcripts that others recorded."""
