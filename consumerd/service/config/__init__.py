"""The configuration: one model of all tables, the origin of each value, and the conversion of property files."""
