"""`consumerd wire decode` for the protocol of the guide."""

from __future__ import annotations

import click

from consumerd.cli.wire_forms import Decoded, Decoder, Form, number_of
from consumerd.wire import v08
from consumerd.wire.errors import FrameError

_SIZE = 4


def v08_decoder(api_key: str, version: int, *, is_request: bool) -> Decoder:
    """The decoder of an API's requests or responses. Raises UsageError for an unknown API."""
    names = {api.name.lower(): key for key, api in v08.APIS.items()}
    names |= {api.alias.lower(): key for key, api in v08.APIS.items() if api.alias}
    api = v08.APIS[number_of("--api-key", api_key, names)]
    head = {"api": api.name, "api_key": api.key, "api_version": version}

    def body(data: bytes) -> Decoded:
        direction: v08.Direction = "request" if is_request else "response"
        value = v08.decode_body(api, direction, version, data)
        return Decoded(head | {"body": value}, lambda: v08.encode_body(api, direction, version, value))

    def request(data: bytes, cut: int) -> Decoded:
        found = v08.read_api(data)
        if found != (api.key, version):
            raise FrameError(
                f"the header of the request says API key {found[0]} and version {found[1]}, not {api.key} and {version}"
            )
        message = v08.decode_request(api, data)
        value = head | {"header": message.header._asdict(), "body": message.body}
        return Decoded(value, lambda: v08.encode_request_message(api, message)[cut:])

    def response(data: bytes, cut: int) -> Decoded:
        answered = v08.answered_version(api, version, data)
        message = v08.decode_response(api, answered, data)
        value = head | {"api_version": answered, "header": message.header._asdict(), "body": message.body}
        return Decoded(value, lambda: v08.encode_response(api, answered, message)[cut:])

    def decode(form: Form, data: bytes) -> Decoded:
        try:
            if form == "body":
                return body(data)
            return (request if is_request else response)(data, 0 if form == "frame" else _SIZE)
        except v08.UnsupportedVersionError as error:
            raise click.UsageError(str(error)) from None

    return decode
