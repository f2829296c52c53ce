"""Bundles: the directory that holds all evidence of one run, and what it is bound to."""
