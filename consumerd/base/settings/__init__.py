"""The settings: each is declared once, with its type, default, bounds, meaning and other names.

Files in reading order: moments, kind, setting, properties, group, monitoring, processing, servers.
"""
