"""Decoders: from the bytes of a message to the value that a handler works with.

Strategy: a decoder is one function of a message, found as handlers are (entry points `consumerd.decoders`). Each of
ours raises DecodeError, whatever the bytes; an error of any other decoder is treated as one. Messages are decoded ahead
of the handler, a bounded number at once (`consumerd.handlers.decoding.stage`): so a message that cannot be decoded
meets the failure policy by itself, and no other message of its batch is delivered twice because of it.

Values of Avro and of a schema registry are read by `consumerd.net.schemas`.

Files in reading order: api, avro_decoder, json_decoder, plain, registry_decoder, stage.
"""
