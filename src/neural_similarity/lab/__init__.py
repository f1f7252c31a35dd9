"""The laboratory: what reproduces the paper and trains networks."""
