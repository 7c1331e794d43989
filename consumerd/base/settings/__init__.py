"""The settings: each is declared once, with its type, default, bounds, meaning and other names.

In reading order: `kind`, the values that a setting may have, and the sentence about others; `setting`, the declaration
of a key; `group`, `work`, `servers`, `monitoring` and `subscriptions`, the tables of keys; `properties`, the fields of
dataclasses that properties of Kafka 0.7 or options fill.
"""
