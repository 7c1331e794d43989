"""The process: its configuration file, its life from start to end, and what it tells of itself."""
