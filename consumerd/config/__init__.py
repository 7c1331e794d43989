"""The configuration: one model of all tables, where values come from, and what other programs' files become."""
