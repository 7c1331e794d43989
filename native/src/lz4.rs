//! LZ4 frames, as `consumerd.wire.lz4` reads them.
//!
//! Strategy: the frame is walked here, the blocks are lz4_flex's, which reads some that the reference refuses: those that
//! do not end as the format says. Blocks that build on one another, and frames that could hold more than the limit, are
//! left to the pure code.
use lz4_flex::block::decompress_into;
use twox_hash::XxHash32;

use crate::inflate::{grow, most_pieces};

const MAGIC: &[u8] = b"\x04\x22\x4d\x18";
const VERSION: u8 = 0xC0;
const INDEPENDENT: u8 = 0x20;
const BLOCK_CHECKSUMS: u8 = 0x10;
const CONTENT_SIZE: u8 = 0x08;
const CONTENT_CHECKSUM: u8 = 0x04;
const RESERVED: u8 = 0x02;
const DICTIONARY: u8 = 0x01;
/// A block's size field: it is kept as it is.
const RAW: u32 = 1 << 31;
/// No block makes more out of a byte.
const MAX_RATIO: usize = 255;
/// How a block has to end: as many literals, and no match that begins later.
const LAST_LITERALS: usize = 5;
const LAST_MATCH: usize = 12;

/// The content of the frame at the start of `data`, of at most `limit` bytes; anything may follow it.
pub fn unlz4(data: &[u8], out: &mut Vec<u8>, limit: usize) -> Option<usize> {
    if data.len() < 7 || !data.starts_with(MAGIC) {
        return None;
    }
    let (flags, class) = (data[4], data[5]);
    let header = 6 + if flags & CONTENT_SIZE > 0 { 8 } else { 0 };
    if flags & VERSION != 0x40
        || flags & (RESERVED | DICTIONARY) > 0
        || class & 0x8F > 0
        || class < 0x40
    {
        return None;
    }
    let found = *data.get(header)?;
    if found != header_checksum(&data[4..header]) && found != header_checksum(&data[..header]) {
        return None;
    }
    let block_size = 1 << (8 + 2 * (class >> 4));
    let (mut position, mut size, mut most) = (header + 1, 0, 0_usize);
    let mut pieces = most_pieces(data.len());
    loop {
        let field = le32(data, position)?;
        position += 4;
        if field == 0 {
            break;
        }
        pieces = pieces.checked_sub(1)?;
        let stored = (field & !RAW) as usize;
        let block = data.get(position..position + stored)?;
        if stored > block_size || (size > 0 && flags & INDEPENDENT == 0) {
            return None;
        }
        position += stored;
        if flags & BLOCK_CHECKSUMS > 0 {
            if le32(data, position)? != XxHash32::oneshot(0, block) {
                return None;
            }
            position += 4;
        }
        let room = if field & RAW > 0 {
            stored
        } else {
            block_size.min(stored * MAX_RATIO)
        };
        // That of all blocks, whatever they come to: so the pure code reckons.
        most += room;
        if most > limit {
            return None;
        }
        grow(out, size + room);
        if field & RAW > 0 {
            out[size..size + stored].copy_from_slice(block);
            size += stored;
        } else {
            let made = decompress_into(block, &mut out[size..size + room]).ok()?;
            if !ends_well(block, made) {
                return None;
            }
            size += made;
        }
    }
    if flags & CONTENT_CHECKSUM > 0 && le32(data, position)? != XxHash32::oneshot(0, &out[..size]) {
        return None;
    }
    if flags & CONTENT_SIZE > 0 && data[6..14] != (size as u64).to_le_bytes() {
        return None;
    }
    Some(size)
}

/// The byte after a frame's header.
fn header_checksum(header: &[u8]) -> u8 {
    (XxHash32::oneshot(0, header) >> 8) as u8
}

fn le32(data: &[u8], position: usize) -> Option<u32> {
    let bytes = data.get(position..position + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Whether a block of `size` bytes, which can be decompressed, ends as compressors must end it.
fn ends_well(block: &[u8], size: usize) -> bool {
    let (mut position, mut made, mut last_match) = (0, 0, None);
    while let Some(&token) = block.get(position) {
        position += 1;
        let Some(literals) = length(block, &mut position, token >> 4) else {
            return false;
        };
        position += literals;
        made += literals;
        if position >= block.len() {
            return made == size
                && last_match
                    .is_none_or(|begin| literals >= LAST_LITERALS && begin + LAST_MATCH <= size);
        }
        position += 2;
        let Some(matched) = length(block, &mut position, token & 15) else {
            return false;
        };
        last_match = Some(made);
        made += matched + 4;
    }
    false
}

/// A length whose first four bits are `start`.
fn length(block: &[u8], position: &mut usize, start: u8) -> Option<usize> {
    let mut length = start as usize;
    if start == 15 {
        loop {
            let more = *block.get(*position)?;
            *position += 1;
            length += more as usize;
            if more < 255 {
                break;
            }
        }
    }
    Some(length)
}
