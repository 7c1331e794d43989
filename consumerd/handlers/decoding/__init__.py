"""Decoders: from the bytes of a message to the value that a handler works with.

Strategy: a decoder is one function of a message, found as handlers are (entry points `consumerd.decoders`). Each of
ours raises DecodeError, whatever the bytes; an error of any other decoder is treated as one. Messages are decoded ahead
of the handler, a bounded number at once (`consumerd.handlers.decoding.stage`): so a message that cannot be decoded
meets the failure policy by itself, and no other message of its batch is delivered twice because of it.

Easy to miss:

- fastavro recurses in C without a limit, and makes as many items of no bytes as a message claims to have.

Files in reading order: api, avro_decoder, json_decoder, plain, schema_registry,
registry_decoder, stage.
"""
