//! Messages as NDJSON, as `consumerd.handlers.builtin.records` writes them, straight from where their payloads are.
//!
//! Text is kept exactly: what JSON does not ask to be escaped is written as it came.

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const HEX: &[u8; 16] = b"0123456789abcdef";

/// `{head}{offset},"index":{index},"payload":"{payload}"}` and a newline, to the end of `out`.
pub fn write_line(out: &mut Vec<u8>, head: &[u8], offset: i64, index: usize, payload: &[u8]) {
    write_place(out, head, offset, index);
    out.push(b',');
    write_payload(out, payload, false);
    out.extend_from_slice(b"}\n");
}

/// What the rows of a run have in common in an export: the texts before the offset, before and after the payload, and whether
/// payloads are written as base64 even where they are text.
pub struct Frame<'a> {
    pub head: &'a [u8],
    pub kind: &'a [u8],
    pub tail: &'a [u8],
    pub base64: bool,
}

/// `{head}{offset},"index":{index},"next_offset":{next_offset}{kind}"payload":"{payload}"{tail}` to the end of `out`, as
/// `consumerd.storage.archives.ndjson` writes it.
pub fn write_row(out: &mut Vec<u8>, frame: &Frame<'_>, place: (i64, usize, i64), payload: &[u8]) {
    let (offset, index, next_offset) = place;
    write_place(out, frame.head, offset, index);
    out.extend_from_slice(b",\"next_offset\":");
    out.extend_from_slice(itoa(next_offset, &mut [0; 20]));
    out.extend_from_slice(frame.kind);
    write_payload(out, payload, frame.base64);
    out.extend_from_slice(frame.tail);
}

fn write_place(out: &mut Vec<u8>, head: &[u8], offset: i64, index: usize) {
    out.extend_from_slice(head);
    out.extend_from_slice(itoa(offset, &mut [0; 20]));
    out.extend_from_slice(b",\"index\":");
    out.extend_from_slice(itoa(index as i64, &mut [0; 20]));
}

fn write_payload(out: &mut Vec<u8>, payload: &[u8], base64: bool) {
    if !base64 && std::str::from_utf8(payload).is_ok() {
        out.extend_from_slice(b"\"payload\":\"");
        write_escaped(out, payload);
    } else {
        out.extend_from_slice(b"\"payload_base64\":\"");
        write_base64(out, payload);
    }
    out.push(b'"');
}

fn write_escaped(out: &mut Vec<u8>, text: &[u8]) {
    let mut rest = text;
    while let Some(at) = rest
        .iter()
        .position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\')
    {
        out.extend_from_slice(&rest[..at]);
        let byte = rest[at];
        let short = match byte {
            b'"' | b'\\' => byte,
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0x08 => b'b',
            0x0c => b'f',
            _ => 0,
        };
        if short == 0 {
            out.extend_from_slice(b"\\u00");
            out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        } else {
            out.extend_from_slice(&[b'\\', short]);
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

fn write_base64(out: &mut Vec<u8>, data: &[u8]) {
    for chunk in data.chunks(3) {
        let bits = chunk
            .iter()
            .fold(0u32, |bits, &byte| bits << 8 | u32::from(byte))
            << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let sextet = bits >> (18 - 6 * place) & 63;
            out.push(if place <= chunk.len() {
                BASE64[sextet as usize]
            } else {
                b'='
            });
        }
    }
}

/// The decimal digits of a number.
fn itoa(number: i64, digits: &mut [u8; 20]) -> &[u8] {
    let mut left = number.unsigned_abs();
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    &digits[at..]
}
