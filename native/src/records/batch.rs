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
    pub leader_epoch: i32,
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
            leader_epoch: be32(data, position + 12)? as i32,
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

/// A record where it was found. Places are in the bytes of all records.
pub struct Record {
    pub time: i64,
    pub delta: i64,
    pub key: Option<(usize, usize)>,
    pub value: Option<(usize, usize)>,
    /// Where the headers begin and end, and how many they are.
    pub headers: (usize, usize, usize),
}

/// Read the records of a batch, which are `body` and stand at `base`, onto the columns; returns their offsets.
pub fn read_records(
    columns: &mut Columns,
    body: &[u8],
    base: usize,
    header: &Header,
) -> Option<Offsets> {
    let count = count_of(body, header)?;
    let appended = header.log_append_time();
    let mut offsets = Offsets::default();
    columns.values.reserve(count);
    columns.times.reserve(count);
    walk_records(body, header, |record| {
        let (start, end, found) = record.headers;
        if found > 0 {
            columns.push_headers(base + start, end - start, found);
        }
        let offset = header.base_offset.wrapping_add(record.delta);
        offsets.push(&mut columns.listed, offset);
        let time = if appended { 0 } else { record.time };
        columns.push(base, record.key, record.value, time);
    })?;
    Some(offsets)
}

/// How many records the header says that `body` has, if it has the room for them.
fn count_of(body: &[u8], header: &Header) -> Option<usize> {
    let count = usize::try_from(header.count).ok()?;
    (count.checked_mul(MIN_RECORD)? <= body.len()).then_some(count)
}

/// Call `each` with the records of a batch, which are `body`; returns their number, and nothing if one cannot be read.
#[inline(always)]
pub fn walk_records(body: &[u8], header: &Header, mut each: impl FnMut(&Record)) -> Option<usize> {
    let count = count_of(body, header)?;
    let (mut position, mut next) = (0, 0);
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
        let start = position;
        let mut found = 0;
        if *record.get(position)? != 0 {
            found = skip_headers(record, &mut position)?;
        } else {
            position += 1;
        }
        if position != end {
            return None;
        }
        each(&Record {
            time,
            delta,
            key,
            value,
            headers: (start, position, found),
        });
    }
    (position == body.len() && next - 1 <= i64::from(header.last_offset_delta)).then_some(count)
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
