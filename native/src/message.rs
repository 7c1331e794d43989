//! One message of 0.7's format: where its payload is, and whether it can be believed.
//!
//! (int32 length, int8 magic, [int8 attributes, if magic is 1], uint32 CRC of the payload, payload)
use libdeflater::crc32;

use crate::inflate::Codec;

/// Bytes of the length field, and between it and the payload by magic.
pub const LENGTH: usize = 4;
pub const HEADER: [usize; 2] = [5, 6];

pub struct Message {
    pub codec: Codec,
    /// Where the payload begins and ends, which is where the next message begins.
    pub start: usize,
    pub end: usize,
    /// Bytes before the payload.
    pub overhead: usize,
}

pub enum Looked {
    Whole(Message),
    /// Fewer bytes than a length field, or than the length says.
    Cut,
    /// Anything else.
    Bad,
}

/// Look at the message at `position`. `longest` is the largest length field that is believed.
#[inline]
pub fn look(data: &[u8], position: usize, longest: usize) -> Looked {
    let Some(length) = be32(data, position) else {
        return Looked::Cut;
    };
    let length = length as usize;
    if length < HEADER[0] || length > longest.min(i32::MAX as usize) {
        return Looked::Bad;
    }
    let begin = position + LENGTH;
    let Some(message) = data.get(begin..begin + length) else {
        return Looked::Cut;
    };
    let (header, attributes) = match message[0] {
        0 => (HEADER[0], 0),
        1 => (HEADER[1], message[1]),
        _ => return Looked::Bad,
    };
    let (Some(payload), Some(crc)) = (message.get(header..), be32(message, header - 4)) else {
        return Looked::Bad;
    };
    if crc32(payload) != crc {
        return Looked::Bad;
    }
    let codec = match attributes & 3 {
        0 => Codec::None,
        1 => Codec::Gzip,
        2 => Codec::Snappy,
        _ => return Looked::Bad,
    };
    Looked::Whole(Message {
        codec,
        start: begin + header,
        end: begin + length,
        overhead: LENGTH + header,
    })
}

/// The plain messages of one magic from `position` on: where the first other thing stands, and how many there are.
///
/// A payload of more than `longest` bytes is another thing, and, unless `last`, so is a message that no header follows.
pub fn verify(
    data: &[u8],
    mut position: usize,
    longest: usize,
    magic: u8,
    last: bool,
) -> (usize, usize) {
    let header = HEADER[usize::from(magic == 1)];
    let behind = if last { 0 } else { LENGTH + header };
    let mut count = 0;
    while let (Some(length), Some(message)) = (
        be32(data, position),
        data.get(position.saturating_add(LENGTH)..),
    ) {
        let length = length as usize;
        if length < header || length - header > longest || message.len() < length + behind {
            break;
        }
        if message[0] != magic || (magic == 1 && message[1] != 0) {
            break;
        }
        let payload = &message[header..length];
        // Of nothing the checksum is known: a set of millions of empty messages is read in half of the time.
        let crc = if payload.is_empty() {
            0
        } else {
            crc32(payload)
        };
        if be32(message, header - 4) != Some(crc) {
            break;
        }
        count += 1;
        position += LENGTH + length;
    }
    (position, count)
}

#[inline]
pub fn be32(data: &[u8], position: usize) -> Option<u32> {
    let bytes = data.get(position..position + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}
