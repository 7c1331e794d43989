//! What zstd frames can hold at most, as `consumerd.wire.zstd` reckons it before anything is allocated.
//!
//! Frames that nobody writes to Kafka (with a dictionary, or a window that a decoder in steps refuses) are left to the
//! pure code.
use crate::inflate::most_pieces;

const MAGIC: &[u8] = b"\x28\xb5\x2f\xfd";
const MAX_BLOCK: usize = 128 * 1024;
/// Bytes of the content size field, by its flag in the descriptor.
const CONTENT_SIZE_BYTES: [usize; 4] = [0, 2, 4, 8];
const SINGLE_SEGMENT: u8 = 0x20;
const RESERVED: u8 = 0x08;
const CHECKSUM: u8 = 0x04;
const DICTIONARY: u8 = 0x03;
/// Windows of up to 64 MiB: a decoder in steps takes twice that.
const LARGEST_WINDOW: u8 = 16;
const LARGEST_SEGMENT: u64 = 1 << 26;
const RLE: usize = 1;
const COMPRESSED: usize = 2;

/// How many bytes the frames in `data` can hold at most.
pub fn most_of(data: &[u8]) -> Option<usize> {
    let (mut position, mut most) = (0, 0);
    let mut pieces = most_pieces(data.len());
    while position < data.len() || position == 0 {
        if !data.get(position..)?.starts_with(MAGIC) {
            return None;
        }
        let descriptor = *data.get(position + 4)?;
        if descriptor & (DICTIONARY | RESERVED) > 0 {
            return None;
        }
        position += 5;
        let mut field = CONTENT_SIZE_BYTES[usize::from(descriptor >> 6)];
        if descriptor & SINGLE_SEGMENT > 0 {
            field = field.max(1);
            let mut bytes = [0; 8];
            bytes[..field].copy_from_slice(data.get(position..position + field)?);
            if u64::from_le_bytes(bytes) > LARGEST_SEGMENT {
                return None;
            }
        } else {
            if *data.get(position)? >> 3 >= LARGEST_WINDOW {
                return None;
            }
            position += 1;
        }
        position += field;
        loop {
            let head = data.get(position..position + 3)?;
            let head =
                usize::from(head[0]) | usize::from(head[1]) << 8 | usize::from(head[2]) << 16;
            let (last, kind, size) = (head & 1 > 0, head >> 1 & 3, head >> 3);
            if kind > COMPRESSED || (kind != RLE && size > MAX_BLOCK) {
                return None;
            }
            pieces = pieces.checked_sub(1)?;
            position += 3 + if kind == RLE { 1 } else { size };
            most += if kind == COMPRESSED { MAX_BLOCK } else { size };
            if last {
                break;
            }
        }
        if descriptor & CHECKSUM > 0 {
            position += 4;
        }
    }
    (position == data.len()).then_some(most)
}
