"""Archives of segment files: where they are, whether they are sound, and what is in them (ring 1)."""
