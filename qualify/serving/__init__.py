"""Serving: one arm of the release as a running server, and how that server ended."""
