"""Benchmarks: ratios against a peer or a limit that is measured in the same run."""
