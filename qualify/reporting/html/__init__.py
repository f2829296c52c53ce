"""The offline HTML report: one file without network, scripts or anything that is not in the bundle."""
