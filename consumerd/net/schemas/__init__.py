"""Schemas from a registry: read by their ids and kept, and values read with them (Avro, Protobuf, JSON Schema).

Strategy: the daemon's decoders and the tasks of `refine` have the same readers, so nothing here knows of handlers, logs
or loops: calls block, and each value that cannot be read is a DecodeError. The packages of the formats (the extra
`schema-registry`) are imported with the first schema that needs one.

Files in reading order: errors, registry, frames, avro, protobuf, json_schema.

Easy to miss:

- fastavro recurses in C without a limit, and makes as many items of no bytes as a message claims to have.
"""
