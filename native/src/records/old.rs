//! Messages of magic 0 and 1 (`consumerd.wire.v08.records.message_set`).
use libdeflater::crc32;

use crate::message::be32;

/// Bytes of offset and size, and of these and the CRC.
pub const LOG_OVERHEAD: usize = 12;
const HEAD: usize = 16;
/// The smallest size field, by magic.
pub const MIN_SIZE: [usize; 2] = [14, 22];
/// What a message without a timestamp has.
pub const NO_TIMESTAMP: i64 = -1;

/// One whole message whose CRC is right. Places are in the data that it was read from.
pub struct Message {
    pub offset: i64,
    pub magic: u8,
    pub attributes: u8,
    pub timestamp: i64,
    pub key: Option<(usize, usize)>,
    pub value: Option<(usize, usize)>,
    pub end: usize,
}

/// The message at `position`, if it is whole and intact.
#[inline]
pub fn read(data: &[u8], position: usize) -> Option<Message> {
    let offset = be64(data, position)?;
    let size = be32(data, position + 8)? as usize;
    let end = position + LOG_OVERHEAD + size;
    let whole = data.get(..end)?;
    let magic = *whole.get(position + HEAD)?;
    if magic > 1 || size < MIN_SIZE[usize::from(magic)] || size > i32::MAX as usize {
        return None;
    }
    let attributes = whole[position + HEAD + 1];
    if be32(whole, position + 12)? != crc32(&whole[position + HEAD..]) {
        return None;
    }
    let mut place = position + HEAD + 2;
    let mut timestamp = NO_TIMESTAMP;
    if magic == 1 {
        timestamp = be64(whole, place)?;
        place += 8;
    }
    let key = field(whole, &mut place)?;
    let value = field(whole, &mut place)?;
    (place == end).then_some(Message {
        offset,
        magic,
        attributes,
        timestamp,
        key,
        value,
        end,
    })
}

#[inline]
fn field(data: &[u8], place: &mut usize) -> Option<Option<(usize, usize)>> {
    let size = be32(data, *place)?;
    *place += 4;
    if size == u32::MAX {
        return Some(None);
    }
    let start = *place;
    *place += size as usize;
    (size <= i32::MAX as u32 && *place <= data.len()).then_some(Some((start, *place)))
}

#[inline]
pub fn be64(data: &[u8], position: usize) -> Option<i64> {
    let bytes = data.get(position..position + 8)?;
    Some(i64::from_be_bytes(bytes.try_into().ok()?))
}
