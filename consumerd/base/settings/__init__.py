"""The settings: each is declared once, as a key of a table, with its type, default, bounds and meaning.

In reading order: `setting` is what a declaration says; `group`, `work`, `servers`, `monitoring` and `subscriptions` are
the tables.
"""
