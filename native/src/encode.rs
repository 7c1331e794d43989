//! What producers send: message sets of 0.7 and later, and the records of batches.
//!
//! Strategy: columns in, bytes out, in one pass and one buffer. What is unusual (columns that are no lists, values that are
//! no `bytes`, numbers that do not fit) gives nothing, and the pure code writes it or says why it cannot be written.
use libdeflater::crc32;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyTuple};

use crate::message::{HEADER, LENGTH};
use crate::records::batch::{CRC_END, HEADER as BATCH_HEADER};
use crate::records::old::LOG_OVERHEAD;
use crate::records::varint::{size_of, zigzag};

/// Of messages of 0.8 and later: up to and with the CRC.
const HEAD: usize = 16;
/// Of a message of 0.7 of magic 1: the bytes before its payload.
const MESSAGE: usize = LENGTH + HEADER[1];
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

    /// Length, as `length` gives it, and bytes.
    fn part(&self) -> Option<(i64, &[u8])> {
        let Some(found) = &self.0 else {
            return Some((-1, &[]));
        };
        let bytes = found.as_bytes();
        Some((i64::from(i32::try_from(bytes.len()).ok()?), bytes))
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

/// Payloads of messages of 0.7, and the bytes of their set.
struct Plain<'py> {
    payloads: Vec<Bound<'py, PyBytes>>,
    size: usize,
}

impl<'py> Plain<'py> {
    /// Nothing where `payloads` is no list of `bytes` of at most `largest` bytes each.
    fn new(payloads: &Bound<'py, PyAny>, largest: usize) -> Option<Self> {
        let list = payloads.cast::<PyList>().ok()?;
        let mut payloads = Vec::with_capacity(list.len());
        let mut size = 0;
        for number in 0..list.len() {
            let payload = at(list, number)?.0?;
            let length = payload.as_bytes().len();
            if length > largest {
                return None;
            }
            size += MESSAGE + length;
            payloads.push(payload);
        }
        Some(Plain { payloads, size })
    }

    /// Write one message of magic 1 for each payload; nothing if one is too long for a message.
    fn write(&self, mut out: &mut [u8]) -> Option<()> {
        for payload in &self.payloads {
            let bytes = payload.as_bytes();
            let length = i32::try_from(bytes.len() + HEADER[1]).ok()?;
            let (message, rest) = out.split_at_mut_checked(MESSAGE + bytes.len())?;
            message[..LENGTH].copy_from_slice(&length.to_be_bytes());
            message[LENGTH] = 1;
            message[LENGTH + 2..MESSAGE].copy_from_slice(&crc32(bytes).to_be_bytes());
            message[MESSAGE..].copy_from_slice(bytes);
            out = rest;
        }
        Some(())
    }
}

/// Bytes made by `fill`, in a buffer of zeros; nothing if it gives nothing.
fn filled<'py>(
    py: Python<'py>,
    size: usize,
    fill: impl FnOnce(&mut [u8]) -> Option<()>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let mut whole = false;
    let made = PyBytes::new_with(py, size, |buffer| {
        whole = fill(buffer).is_some();
        Ok(())
    })?;
    Ok(whole.then_some(made))
}

/// Messages of 0.7, of magic 1, one for each payload.
#[pyfunction]
pub fn encode_set<'py>(payloads: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let Some(plain) = Plain::new(payloads, usize::MAX) else {
        return Ok(None);
    };
    filled(payloads.py(), plain.size, |buffer| plain.write(buffer))
}

/// A copy of `messages`; nothing if it is not a list of nothing but `bytes`.
#[pyfunction]
pub fn copy_bytes<'py>(messages: &Bound<'py, PyAny>) -> Option<Bound<'py, PyList>> {
    let list = messages.cast_exact::<PyList>().ok()?;
    let plain = list
        .iter()
        .all(|message| message.is_exact_instance_of::<PyBytes>());
    plain.then(|| list.get_slice(0, list.len()))
}

/// A whole PRODUCE request of 0.7 with such messages: length, type, topic, partition, size of the set, set.
///
/// Nothing also where a payload has more than `largest` bytes, or the set more than `most`.
#[pyfunction]
pub fn encode_produce<'py>(
    topic: &[u8],
    partition: &Bound<'py, PyAny>,
    payloads: &Bound<'py, PyAny>,
    largest: usize,
    most: usize,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let Some((plain, head)) = Plain::new(payloads, largest)
        .filter(|plain| plain.size <= most)
        .and_then(|plain| {
            let head = produce_head(topic, partition.extract().ok()?, plain.size)?;
            Some((plain, head))
        })
    else {
        return Ok(None);
    };
    filled(payloads.py(), head.len() + plain.size, |buffer| {
        let (first, set) = buffer.split_at_mut_checked(head.len())?;
        first.copy_from_slice(&head);
        plain.write(set)
    })
}

/// What stands before the set of a PRODUCE request; nothing if a length does not fit into its field.
fn produce_head(topic: &[u8], partition: i32, set: usize) -> Option<Vec<u8>> {
    let length = i32::try_from(2 + 2 + topic.len() + 4 + 4 + set).ok()?;
    let mut head = Vec::with_capacity(LENGTH + 12 + topic.len());
    head.extend_from_slice(&length.to_be_bytes());
    head.extend_from_slice(&0_i16.to_be_bytes()); // PRODUCE
    head.extend_from_slice(&i16::try_from(topic.len()).ok()?.to_be_bytes());
    head.extend_from_slice(topic);
    head.extend_from_slice(&partition.to_be_bytes());
    head.extend_from_slice(&i32::try_from(set).ok()?.to_be_bytes());
    Some(head)
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

/// The numbers at the beginning of a record, which are appended at once.
#[derive(Default)]
struct Head {
    bytes: [u8; 32],
    used: usize,
}

impl Head {
    fn byte(&mut self, byte: u8) {
        self.bytes[self.used] = byte;
        self.used += 1;
    }

    /// Add a varint, as `size_of` counts it.
    #[inline]
    fn push(&mut self, number: i64) {
        let mut raw = zigzag(number);
        while raw > 0x7F {
            self.byte(raw as u8 | 0x80);
            raw >>= 7;
        }
        self.byte(raw as u8);
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

/// Append records without headers; gives the first and the highest timestamp.
fn write_records(rows: &Rows, out: &mut Vec<u8>) -> Option<(i64, i64)> {
    let base = rows.time(0)?;
    let mut highest = base;
    // Many messages have the same object as their time.
    let mut last = (std::ptr::null_mut(), base);
    for number in 0..rows.payloads.len() {
        let (key, value) = (rows.key(number)?, at(rows.payloads, number)?);
        let time = match rows.times {
            Times::Same(time) => time,
            Times::Each(times) => {
                let item = times.get_item(number).ok()?;
                if item.as_ptr() != last.0 {
                    last = (item.as_ptr(), item.extract().ok()?);
                }
                last.1
            }
        };
        highest = highest.max(time);
        let delta = time.checked_sub(base)?;
        let place = i64::try_from(number).ok()?;
        let (key_length, key) = key.part()?;
        let (length, value) = value.part()?;
        // Without its own length; with the attributes and the number of headers, a byte each.
        let numbers = 2 + size_of(delta) + size_of(place) + size_of(key_length) + size_of(length);
        let size = i32::try_from(numbers + key.len() + value.len()).ok()?;
        let mut head = Head::default();
        head.push(i64::from(size));
        head.byte(0);
        head.push(delta);
        head.push(place);
        head.push(key_length);
        if !key.is_empty() {
            out.extend_from_slice(head.bytes());
            out.extend_from_slice(key);
            head = Head::default();
        }
        head.push(length);
        out.extend_from_slice(head.bytes());
        out.extend_from_slice(value);
        out.push(0);
    }
    Some((base, highest))
}

/// Records without headers; and the first and the highest timestamp.
#[pyfunction]
pub fn encode_records<'py>(
    payloads: &Bound<'py, PyAny>,
    keys: Option<&Bound<'py, PyAny>>,
    times: &Bound<'py, PyAny>,
) -> Option<(Bound<'py, PyBytes>, i64, i64)> {
    let rows = Rows::new(payloads, keys, times)?;
    let mut out = Vec::with_capacity(rows.room());
    let (base, highest) = write_records(&rows, &mut out)?;
    Some((PyBytes::new(payloads.py(), &out), base, highest))
}

/// A record batch without compression and headers; `around` it a whole request, if there is one.
///
/// `numbers`: attributes, base offset, leader epoch, producer id, producer epoch, base sequence. `around`: what stands
/// before the batch (between the size of the request and that of the record set), whether the latter is a compact
/// length, and what stands behind the batch.
#[pyfunction]
#[pyo3(signature = (payloads, keys, times, numbers, around, /))]
pub fn encode_batch<'py>(
    payloads: &Bound<'py, PyAny>,
    keys: Option<&Bound<'py, PyAny>>,
    times: &Bound<'py, PyAny>,
    numbers: &Bound<'py, PyTuple>,
    around: Option<(Bound<'py, PyBytes>, bool, Bound<'py, PyBytes>)>,
) -> Option<Bound<'py, PyBytes>> {
    let rows = Rows::new(payloads, keys, times)?;
    let (before, compact, after) = match &around {
        None => (&[][..], false, &[][..]),
        Some((before, compact, after)) => (before.as_bytes(), *compact, after.as_bytes()),
    };
    // The head is written last, because its lengths vary: to the end of the room for it.
    let room = LENGTH + before.len() + MAX_COMPACT;
    let mut out = Vec::with_capacity(room + BATCH_HEADER + rows.room() + after.len());
    out.resize(room + BATCH_HEADER, 0);
    let (base, highest) = write_records(&rows, &mut out)?;
    write_batch_header(
        &mut out[room..],
        rows.payloads.len(),
        base,
        highest,
        numbers,
    )?;
    if around.is_none() {
        return Some(PyBytes::new(payloads.py(), &out[room..]));
    }
    let set = out.len() - room;
    let length = if compact {
        compact_length(set)?
    } else {
        i32::try_from(set).ok()?.to_be_bytes().to_vec()
    };
    out.extend_from_slice(after);
    let start = room - LENGTH - before.len() - length.len();
    let size = i32::try_from(out.len() - start - LENGTH).ok()?;
    let mut place = start;
    for piece in [&size.to_be_bytes()[..], before, &length] {
        out[place..place + piece.len()].copy_from_slice(piece);
        place += piece.len();
    }
    Some(PyBytes::new(payloads.py(), &out[start..]))
}

/// Bytes of the longest compact length of what fits into a request.
const MAX_COMPACT: usize = 5;

/// Of something that may be null: one more, as an unsigned varint.
fn compact_length(size: usize) -> Option<Vec<u8>> {
    let mut left = u32::try_from(i32::try_from(size).ok()?).ok()? + 1;
    let mut out = Vec::with_capacity(MAX_COMPACT);
    while left > 0x7F {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
    Some(out)
}

/// Write the header of the batch that `batch` is, up to its end.
fn write_batch_header(
    batch: &mut [u8],
    count: usize,
    base: i64,
    highest: i64,
    numbers: &Bound<'_, PyTuple>,
) -> Option<()> {
    type Numbers = (i16, i64, i32, i64, i16, i32);
    let (attributes, offset, leader_epoch, producer, epoch, sequence) =
        numbers.extract::<Numbers>().ok()?;
    let count = i32::try_from(count).ok()?;
    let length = i32::try_from(batch.len() - LOG_OVERHEAD).ok()?;
    let fields: [&[u8]; 12] = [
        &offset.to_be_bytes(),
        &length.to_be_bytes(),
        &leader_epoch.to_be_bytes(),
        &[2, 0, 0, 0, 0], // magic; the CRC, which is written when the rest is there
        &attributes.to_be_bytes(),
        &(count - 1).to_be_bytes(),
        &base.to_be_bytes(),
        &highest.to_be_bytes(),
        &producer.to_be_bytes(),
        &epoch.to_be_bytes(),
        &sequence.to_be_bytes(),
        &count.to_be_bytes(),
    ];
    let mut place = 0;
    for field in fields {
        batch[place..place + field.len()].copy_from_slice(field);
        place += field.len();
    }
    let crc = crc32c::crc32c(&batch[CRC_END..]);
    batch[CRC_END - 4..CRC_END].copy_from_slice(&crc.to_be_bytes());
    Some(())
}
