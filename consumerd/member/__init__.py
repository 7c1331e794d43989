"""A member of a group: what was handled (offsets), what is read (fetch), and the members themselves (consumer)."""
