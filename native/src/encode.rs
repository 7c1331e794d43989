//! What producers send: message sets of 0.7 and later, and the records of batches.
//!
//! Strategy: columns in, bytes out, in one pass and one buffer. What is unusual (columns that are no lists, values that are
//! no `bytes`, numbers that do not fit) gives nothing, and the pure code writes it or says why it cannot be written.
use libdeflater::crc32;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList};

use crate::message::{HEADER, LENGTH};
use crate::records::old::LOG_OVERHEAD;
use crate::records::varint::{size_of, write};

/// Of messages of 0.8 and later: up to and with the CRC.
const HEAD: usize = 16;
/// What a message or record has beside its bytes, about.
const ROOM: usize = 40;

/// The columns of what is to be written.
struct Rows<'a, 'py> {
    payloads: &'a Bound<'py, PyList>,
    keys: Option<&'a Bound<'py, PyList>>,
    times: Times<'a, 'py>,
}

enum Times<'a, 'py> {
    Same(i64),
    Each(&'a Bound<'py, PyList>),
}

impl<'a, 'py> Rows<'a, 'py> {
    /// Nothing where the columns are no lists of one length.
    fn new(
        payloads: &'a Bound<'py, PyAny>,
        keys: Option<&'a Bound<'py, PyAny>>,
        times: &'a Bound<'py, PyAny>,
    ) -> Option<Self> {
        let payloads = payloads.cast::<PyList>().ok()?;
        let keys = match keys {
            Some(keys) => Some(keys.cast::<PyList>().ok()?),
            None => None,
        };
        let times = if times.is_instance_of::<PyInt>() {
            Times::Same(times.extract().ok()?)
        } else {
            Times::Each(times.cast::<PyList>().ok()?)
        };
        let count = payloads.len();
        let same = match times {
            Times::Same(_) => true,
            Times::Each(times) => times.len() == count,
        };
        (same && keys.is_none_or(|keys| keys.len() == count)).then_some(Rows {
            payloads,
            keys,
            times,
        })
    }

    #[inline]
    fn time(&self, number: usize) -> Option<i64> {
        match self.times {
            Times::Same(time) => Some(time),
            Times::Each(times) => times.get_item(number).ok()?.extract().ok(),
        }
    }

    #[inline]
    fn key(&self, number: usize) -> Option<Field<'py>> {
        self.keys.map_or(Some(Field(None)), |keys| at(keys, number))
    }

    fn room(&self) -> usize {
        let first = at(self.payloads, 0).map_or(0, |payload| payload.bytes().len());
        self.payloads.len() * (first + ROOM)
    }
}

/// A value or key, which may be null.
struct Field<'py>(Option<Bound<'py, PyBytes>>);

impl Field<'_> {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |found| found.as_bytes())
    }

    /// -1 for null; nothing if it does not fit into 32 bits.
    fn length(&self) -> Option<i32> {
        self.0
            .as_ref()
            .map_or(Some(-1), |found| found.as_bytes().len().try_into().ok())
    }
}

#[inline]
fn at<'py>(list: &Bound<'py, PyList>, number: usize) -> Option<Field<'py>> {
    let item = list.get_item(number).ok()?;
    if item.is_none() {
        return Some(Field(None));
    }
    Some(Field(Some(item.cast_into::<PyBytes>().ok()?)))
}

/// Messages of 0.7, of magic 1, one for each payload.
#[pyfunction]
pub fn encode_set<'py>(payloads: &Bound<'py, PyAny>) -> Option<Bound<'py, PyBytes>> {
    let payloads = payloads.cast::<PyList>().ok()?;
    let mut out = Vec::with_capacity(payloads.len() * ROOM);
    for number in 0..payloads.len() {
        let payload = at(payloads, number)?.0?;
        let bytes = payload.as_bytes();
        let length = i32::try_from(bytes.len() + HEADER[1]).ok()?;
        let mut head = [0; LENGTH + HEADER[1]];
        head[..LENGTH].copy_from_slice(&length.to_be_bytes());
        head[LENGTH] = 1;
        head[LENGTH + 2..].copy_from_slice(&crc32(bytes).to_be_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(bytes);
    }
    Some(PyBytes::new(payloads.py(), &out))
}

/// Messages of 0.8 to 0.10, of magic 0 or 1, whose offsets begin at `offset`.
#[pyfunction]
pub fn encode_messages<'py>(
    payloads: &Bound<'py, PyAny>,
    keys: Option<&Bound<'py, PyAny>>,
    times: &Bound<'py, PyAny>,
    magic: u8,
    attributes: u8,
    offset: &Bound<'py, PyAny>,
) -> Option<Bound<'py, PyBytes>> {
    let rows = Rows::new(payloads, keys, times)?;
    let mut offset: i64 = offset.extract().ok()?;
    let mut out = Vec::with_capacity(rows.room());
    for number in 0..rows.payloads.len() {
        let (key, value) = (rows.key(number)?, at(rows.payloads, number)?);
        let start = out.len();
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&[0; HEAD - 8]);
        out.extend_from_slice(&[magic, attributes]);
        let time = rows.time(number)?;
        if magic > 0 {
            out.extend_from_slice(&time.to_be_bytes());
        }
        for field in [key, value] {
            out.extend_from_slice(&field.length()?.to_be_bytes());
            out.extend_from_slice(field.bytes());
        }
        let size = i32::try_from(out.len() - start - LOG_OVERHEAD).ok()?;
        let crc = crc32(&out[start + HEAD..]);
        out[start + 8..start + LOG_OVERHEAD].copy_from_slice(&size.to_be_bytes());
        out[start + LOG_OVERHEAD..start + HEAD].copy_from_slice(&crc.to_be_bytes());
        offset = offset.checked_add(1)?;
    }
    Some(PyBytes::new(payloads.py(), &out))
}

/// Records without headers; and the first and the highest timestamp.
#[pyfunction]
pub fn encode_records<'py>(
    payloads: &Bound<'py, PyAny>,
    keys: Option<&Bound<'py, PyAny>>,
    times: &Bound<'py, PyAny>,
) -> Option<(Bound<'py, PyBytes>, i64, i64)> {
    let rows = Rows::new(payloads, keys, times)?;
    let base = rows.time(0)?;
    let mut highest = base;
    let mut out = Vec::with_capacity(rows.room());
    for number in 0..rows.payloads.len() {
        let (key, value) = (rows.key(number)?, at(rows.payloads, number)?);
        let time = rows.time(number)?;
        highest = highest.max(time);
        let delta = time.checked_sub(base)?;
        let place = i64::try_from(number).ok()?;
        let (key_length, length) = (i64::from(key.length()?), i64::from(value.length()?));
        // With the attributes and the number of headers, a byte each.
        let numbers = 2 + size_of(delta) + size_of(place) + size_of(key_length) + size_of(length);
        let size = numbers + key.bytes().len() + value.bytes().len();
        write(&mut out, i64::from(i32::try_from(size).ok()?));
        out.push(0);
        write(&mut out, delta);
        write(&mut out, place);
        write(&mut out, key_length);
        out.extend_from_slice(key.bytes());
        write(&mut out, length);
        out.extend_from_slice(value.bytes());
        out.push(0);
    }
    Some((PyBytes::new(payloads.py(), &out), base, highest))
}
