//! Record batches, magic 2 (`consumerd.wire.v08.records.record_batch`).
use crate::message::be32;
use crate::records::columns::{Columns, Offsets};
use crate::records::old::be64;
use crate::records::varint::{int32, int64};

pub const HEADER: usize = 61;
/// Bytes that the CRC does not cover: up to and with itself.
pub const CRC_END: usize = 21;
/// The smallest record.
const MIN_RECORD: usize = 7;
const LOG_APPEND_TIME: u16 = 0x08;
const TRANSACTIONAL: u16 = 0x10;
const CONTROL: u16 = 0x20;

pub struct Header {
    pub base_offset: i64,
    pub crc: u32,
    pub attributes: u16,
    pub last_offset_delta: i32,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub count: i32,
}

impl Header {
    pub fn read(data: &[u8], position: usize) -> Option<Self> {
        Some(Header {
            base_offset: be64(data, position)?,
            crc: be32(data, position + 17)?,
            attributes: (be32(data, position + 21)? >> 16) as u16,
            last_offset_delta: be32(data, position + 23)? as i32,
            base_timestamp: be64(data, position + 27)?,
            max_timestamp: be64(data, position + 35)?,
            producer_id: be64(data, position + 43)?,
            count: be32(data, position + 57)? as i32,
        })
    }

    pub fn log_append_time(&self) -> bool {
        self.attributes & LOG_APPEND_TIME > 0
    }

    pub fn transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL > 0
    }

    pub fn control(&self) -> bool {
        self.attributes & CONTROL > 0
    }
}

/// Read the records of a batch, which are `body` and stand at `base`, onto the columns; returns their offsets.
pub fn read_records(
    columns: &mut Columns,
    body: &[u8],
    base: usize,
    header: &Header,
) -> Option<Offsets> {
    let count = usize::try_from(header.count).ok()?;
    if count.checked_mul(MIN_RECORD)? > body.len() {
        return None;
    }
    let appended = header.log_append_time();
    let mut offsets = Offsets::default();
    let (mut position, mut next) = (0, 0);
    columns.values.reserve(count);
    columns.times.reserve(count);
    for _ in 0..count {
        let length = usize::try_from(int32(body, &mut position)?).ok()?;
        let end = position + length;
        let record = body.get(..end)?;
        position += 1;
        let time = int64(record, &mut position)?;
        let delta = i64::from(int32(record, &mut position)?);
        if delta < next {
            return None;
        }
        next = delta + 1;
        let key = field(record, &mut position)?;
        let value = field(record, &mut position)?;
        if *record.get(position)? != 0 {
            let start = position;
            let found = skip_headers(record, &mut position)?;
            if found > 0 {
                columns.push_headers(base + start, position - start, found);
            }
        } else {
            position += 1;
        }
        if position != end {
            return None;
        }
        offsets.push(&mut columns.listed, header.base_offset.wrapping_add(delta));
        columns.push(base, key, value, if appended { 0 } else { time });
    }
    (position == body.len() && next - 1 <= i64::from(header.last_offset_delta)).then_some(offsets)
}

#[inline]
fn field(record: &[u8], position: &mut usize) -> Option<Option<(usize, usize)>> {
    let Ok(size) = usize::try_from(int32(record, position)?) else {
        return Some(None);
    };
    let start = *position;
    *position += size;
    (*position <= record.len()).then_some(Some((start, *position)))
}

/// How many headers there are at `position`, which moves behind them.
fn skip_headers(record: &[u8], position: &mut usize) -> Option<usize> {
    let count = usize::try_from(int32(record, position)?).ok()?;
    // Each takes two bytes at least.
    if 2 * count > record.len() - *position {
        return None;
    }
    for _ in 0..count {
        field(record, position)??;
        field(record, position)?;
    }
    Some(count)
}

/// A header's name and value.
pub type Found<'a> = (&'a [u8], Option<&'a [u8]>);

/// Call `each` with the headers that `skip_headers` has passed.
pub fn headers<'a>(data: &'a [u8]) -> Option<Vec<Found<'a>>> {
    let mut position = 0;
    let count = usize::try_from(int32(data, &mut position)?).ok()?;
    (0..count)
        .map(|_| {
            let (start, end) = field(data, &mut position)??;
            let value = field(data, &mut position)?;
            Some((
                &data[start..end],
                value.map(|(start, end)| &data[start..end]),
            ))
        })
        .collect()
}
