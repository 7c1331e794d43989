//! A FETCH response of the usual shape, as `consumerd.wire.v08.fetch_frame.fetch_parts` reads it.
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice, PyString};

/// The first version with compact arrays and tagged fields, and the first that names topics by their ids.
const FIRST_VERSION: i16 = 12;
const IDS_SINCE: i16 = 13;
const ID_BYTES: usize = 16;
/// Lengths of arrays, which are one more than their number of items, have one byte.
const SMALL: std::ops::RangeInclusive<u8> = 1..=127;
/// An offset that the broker did not return.
const UNKNOWN: i64 = -1;
/// A record set may be a view if no more than this part of its response is something else.
const REST: usize = 16;

/// Throttle time, error, session, and the partitions: id or name of the topic, index, error, readable end, preferred
/// replica, records.
type Found<'py> = (i32, i16, i32, Vec<Part<'py>>);
type Part<'py> = (Bound<'py, PyAny>, i32, i16, i64, i32, Bound<'py, PyAny>);

/// Index, error, readable end, preferred replica, and where the records are.
type Fields = (i32, i16, i64, i32, (usize, usize));

struct Cursor<'a> {
    data: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let end = self.position.checked_add(size)?;
        let found = self.data.get(self.position..end)?;
        self.position = end;
        Some(found)
    }

    fn array<const SIZE: usize>(&mut self) -> Option<[u8; SIZE]> {
        self.take(SIZE)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    /// The end of a structure: it has no tagged fields.
    fn end(&mut self) -> Option<()> {
        (self.byte()? == 0).then_some(())
    }

    fn i16(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    /// The number of items of an array that is not null and has few.
    fn count(&mut self) -> Option<u8> {
        self.byte()
            .filter(|size| SMALL.contains(size))
            .map(|size| size - 1)
    }

    /// A length of 32 bits, as `consumerd.wire.varint` reads it.
    fn length(&mut self) -> Option<usize> {
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return usize::try_from(u32::try_from(value).ok()?).ok();
            }
        }
        None
    }
}

/// The response `data` without its size; nothing for one that is left to the codec of all APIs.
///
/// `committed`: the readable end is the last stable offset, if there is one. `views`: records are views of the data, if
/// these are hardly larger.
#[pyfunction]
#[pyo3(signature = (version, data, committed, views, /))]
pub fn fetch_parts<'py>(
    version: i16,
    data: &Bound<'py, PyBytes>,
    committed: bool,
    views: bool,
) -> PyResult<Option<Found<'py>>> {
    let mut cursor = Cursor {
        data: data.as_bytes(),
        position: 4, // behind the correlation id
    };
    if version < FIRST_VERSION {
        return Ok(None);
    }
    let Some((throttle, error, session, topics)) = head(&mut cursor) else {
        return Ok(None);
    };
    let mut parts = Vec::new();
    for _ in 0..topics {
        let Some((topic, count)) = topic(&mut cursor, version, data.py()) else {
            return Ok(None);
        };
        for _ in 0..count {
            let Some((index, error, end, preferred, records)) = partition(&mut cursor, committed)
            else {
                return Ok(None);
            };
            let records = taken(data, records, views)?;
            parts.push((topic.clone(), index, error, end, preferred, records));
        }
        if cursor.end().is_none() {
            return Ok(None);
        }
    }
    if cursor.end().is_none() || cursor.position != cursor.data.len() {
        return Ok(None);
    }
    Ok(Some((throttle, error, session, parts)))
}

fn head(cursor: &mut Cursor<'_>) -> Option<(i32, i16, i32, u8)> {
    cursor.end()?;
    Some((cursor.i32()?, cursor.i16()?, cursor.i32()?, cursor.count()?))
}

/// The id or the name of a topic, and the number of its partitions.
fn topic<'py>(
    cursor: &mut Cursor<'_>,
    version: i16,
    py: Python<'py>,
) -> Option<(Bound<'py, PyAny>, u8)> {
    let topic = if version >= IDS_SINCE {
        PyBytes::new(py, cursor.take(ID_BYTES)?).into_any()
    } else {
        let size = cursor.length()?.checked_sub(1)?;
        PyString::new(py, std::str::from_utf8(cursor.take(size)?).ok()?).into_any()
    };
    Some((topic, cursor.count()?))
}

fn partition(cursor: &mut Cursor<'_>, committed: bool) -> Option<Fields> {
    let (index, error) = (cursor.i32()?, cursor.i16()?);
    let (high_watermark, stable, _start) = (cursor.i64()?, cursor.i64()?, cursor.i64()?);
    if cursor.byte()? > 1 {
        return None; // aborted transactions
    }
    let preferred = cursor.i32()?;
    let size = cursor.length()?.saturating_sub(1); // 0 of null
    let begin = cursor.position;
    cursor.take(size)?;
    cursor.end()?;
    let end = if committed && stable != UNKNOWN {
        stable
    } else {
        high_watermark
    };
    Some((index, error, end, preferred, (begin, begin + size)))
}

/// Records as bytes, or as a view that keeps little else in memory.
fn taken<'py>(
    data: &Bound<'py, PyBytes>,
    (begin, end): (usize, usize),
    views: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, bytes) = (data.py(), data.as_bytes());
    if !views || REST * (bytes.len() - (end - begin)) > bytes.len() {
        return Ok(PyBytes::new(py, &bytes[begin..end]).into_any());
    }
    PyMemoryView::from(data)?.get_item(PySlice::new(py, begin as isize, end as isize, 1))
}
