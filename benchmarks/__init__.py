"""Speed, as ratios against peers within one run: `python -m benchmarks [NAME ...]`."""
