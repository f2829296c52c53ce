"""Probes: what is measured beside the transcripts while an arm is served, and how it is read back."""
