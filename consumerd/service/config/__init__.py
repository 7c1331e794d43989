"""The configuration: one model of all tables, the origin of each value, and the conversion of property files.

In: a TOML file, variables of the environment, or property files of 0.7. Out: a `Config`, and the settings objects of
the other rooms.

Files in reading order: model, subscriptions, problems, validation, effective, reloading, example,
schema, key_lines, build, build_v08, build_handlers, build_dead_letters, build_retry_logs, build_subscriptions, convert,
convert_toml, toml_text, properties.
"""
