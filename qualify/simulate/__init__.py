"""Tests the whole judge: on recorded runs of known truth, and on thousands of synthetic runs."""
