//! Batches of one kind that follow one another, by their headers alone (`consumerd.storage.segments.kinds`).
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::message::be32;
use crate::records::batch::{Header, HEADER};
use crate::records::old::{be64, LOG_OVERHEAD, MIN_SIZE};

const MAGIC: usize = 16;
const BATCH_MAGIC: u8 = 2;

/// What batches of one kind have in common: magic, attributes, leader epoch, and the producer of a transaction.
type Kind = (u8, u16, i32, i64);

/// Kind, first and last offset, and end of what is whole at `position` and at most `most` bytes long by its length
/// field; nothing for a control batch, and for what no header can be.
fn look(data: &[u8], position: usize, most: usize) -> Option<(Kind, i64, i64, usize)> {
    let offset = be64(data, position)?;
    let size = be32(data, position + 8)? as usize;
    let end = position + LOG_OVERHEAD + size;
    let magic = *data.get(position + MAGIC)?;
    if offset < 0 || size > most || end > data.len() {
        return None;
    }
    if magic != BATCH_MAGIC {
        let least = *MIN_SIZE.get(usize::from(magic))?;
        let kind = (magic, u16::from(*data.get(position + MAGIC + 1)?), -1, -1);
        return (size >= least && offset < i64::MAX).then_some((kind, offset, offset, end));
    }
    if end < position + HEADER {
        return None;
    }
    let header = Header::read(data, position)?;
    let last = offset.checked_add(i64::from(header.last_offset_delta))?;
    if header.control() || last < offset || last == i64::MAX {
        return None;
    }
    let producer = if header.transactional() {
        header.producer_id
    } else {
        -1
    };
    let kind = (magic, header.attributes, header.leader_epoch, producer);
    Some((kind, offset, last, end))
}

/// Follow the batches of one kind from `position` on, with offsets that grow from `least` on, until they have `room`
/// bytes; returns where they end, how many they are, and the offset of the last one.
#[pyfunction]
pub fn same_kind(
    data: &Bound<'_, PyBytes>,
    position: usize,
    least: i64,
    most: usize,
    room: usize,
) -> (usize, usize, i64) {
    let data = data.as_bytes();
    let (mut end, mut count, mut least) = (position, 0, least);
    let mut found = None;
    while end - position < room {
        let Some((kind, first, last, next)) = look(data, end, most) else {
            break;
        };
        if first < least || *found.get_or_insert(kind) != kind {
            break;
        }
        (end, count, least) = (next, count + 1, last + 1);
    }
    (end, count, least - 1)
}
