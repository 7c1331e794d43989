"""`consumerd wire`: read requests and responses that were recorded on the wire."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

#: Characters of input that are read: more than the hex of any frame that brokers take by default.
MAX_INPUT = 512 * 1024 * 1024

EXAMPLES = """\b
Examples:
  echo 0000001000120000000000010006676f6c64656e | consumerd wire decode --api-key 18 --api-version 0 --request
  consumerd wire decode --api-key fetch --api-version 4 --response --roundtrip < answer.hex
  consumerd wire decode --v07 --type 1 --request < fetch.hex
"""


@click.group("wire")
def command() -> None:
    """Read requests and responses that were recorded on the wire."""


@command.command("decode", epilog=EXAMPLES)
@click.option("--v07", is_flag=True, help="Use the protocol of Kafka 0.6 and 0.7.")
@click.option("--type", "kind", metavar="N", help="With --v07: number (0 to 4) or name of the request type.")
@click.option("--api-key", metavar="K", help="Key or name of the API.")
@click.option("--api-version", metavar="V", type=click.IntRange(0, 32767), help="Version of the API.")
@click.option("--request/--response", "is_request", default=None, help="Whether the bytes are a request or a response.")
@click.option(
    "--form",
    type=click.Choice(["auto", "frame", "message", "body"]),
    default="auto",
    show_default=True,
    help="What the bytes begin with (see above).",
)
@click.option("--roundtrip", is_flag=True, help="Encode the message again, and print it as hex in a last line.")
def decode(
    v07: bool,
    kind: str | None,
    api_key: str | None,
    api_version: int | None,
    is_request: bool | None,
    form: str,
    roundtrip: bool,
) -> None:
    """Read one request or response as hex from standard input, and print it as JSON.

    White space in the hex is ignored. The bytes are a `frame` as on a socket: the size (4 bytes), the header and the
    body. If they are not a valid frame, they are read as a `message` (without the size) or a `body` (without size and
    header); the JSON says which, and --form decides if several are possible. In Kafka 0.7 the header of a request is
    its type alone, and responses have none; responses are read as frames unless --form says otherwise.

    Byte strings, ids and message sets are hex in the JSON. The exit code is 2 for wrong options or invalid hex, and 6
    if the bytes are not such a message.
    """
    from consumerd.cli.wire_decoders import decode_form, v07_decoder, v08_decoder  # noqa: PLC0415  # `--help` needs no schemas

    if is_request is None:
        raise click.UsageError("give --request or --response")
    if v07:
        if kind is None or api_key is not None or api_version is not None:
            raise click.UsageError("--v07 goes with --type, and not with --api-key and --api-version")
        decoder = v07_decoder(kind, is_request=is_request)
    else:
        if api_key is None or api_version is None or kind is not None:
            raise click.UsageError("give --api-key and --api-version, or --v07 and --type")
        decoder = v08_decoder(api_key, api_version, is_request=is_request)
    form_found, decoded = decode_form(_read_hex(), form, decoder, only_frames=v07 and not is_request)
    again = decoded.encode() if roundtrip else None
    indent = 2 if sys.stdout.isatty() else None
    click.echo(json.dumps({"form": form_found, **decoded.value}, default=_plain, indent=indent))
    if again is not None:
        click.echo(again.hex())


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _read_hex() -> bytes:
    text = sys.stdin.buffer.read(MAX_INPUT + 1).decode("ascii", "replace")
    if len(text) > MAX_INPUT:
        raise click.UsageError(f"standard input must have at most {MAX_INPUT} characters")
    try:
        return bytes.fromhex("".join(text.split()))
    except ValueError:
        raise click.UsageError("standard input must be hex: pairs of the digits 0-9 and a-f") from None
