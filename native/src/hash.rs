//! The hashes by which a table is compared with the log that it came from, as `consumerd.spark.lake.row_hash` computes them.
//!
//! Strategy: the columns are buffers of Arrow, each as `bytes`, so they are read where they are, without the GIL. Ranges that
//! a column does not have give nothing, and the pure code judges them.
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use twox_hash::XxHash64;

use crate::arrow::{filled, put_i64};

/// One byte per row, 0 for null, or none at all if nothing is null; 32-bit offsets; the data from the first of them on.
type Binary<'a> = (&'a [u8], &'a [u8], &'a [u8]);

/// The hash of each row, as 64-bit numbers: of its offset (64 bits), index (32 bits), value and key, if it has one. Each
/// hash is the seed of the next one. Nothing for columns that do not fit together.
#[pyfunction]
#[pyo3(signature = (seed, offsets, indexes, values, keys, /))]
pub fn row_hashes<'py>(
    py: Python<'py>,
    seed: u64,
    offsets: &[u8],
    indexes: &[u8],
    values: Binary<'_>,
    keys: Option<Binary<'_>>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let count = offsets.len() / 8;
    let whole = offsets.len() == 8 * count && indexes.len() == 4 * count;
    if !whole || !fits(values, count) || !keys.is_none_or(|keys| fits(keys, count)) {
        return Ok(None);
    }
    let made = filled(py, &[8 * count], |mut out| {
        let mut slots = out[0].chunks_exact_mut(8);
        let places = offsets.chunks_exact(8).zip(indexes.chunks_exact(4));
        for (number, (offset, index)) in places.enumerate() {
            let mut found = hash(hash(seed, offset), index);
            if let Some(value) = part(values, number) {
                found = hash(found, value);
            }
            if let Some(key) = keys.and_then(|keys| part(keys, number)) {
                found = hash(hash(found, &1_i32.to_le_bytes()), key); // so that it is not taken for a value
            }
            put_i64(&mut slots, found as i64);
        }
    })?;
    Ok(made.into_iter().next())
}

#[inline]
fn hash(seed: u64, data: &[u8]) -> u64 {
    XxHash64::oneshot(seed, data)
}

/// Whether a column has `count` rows, each of which is within its data.
fn fits((valid, offsets, data): Binary<'_>, count: usize) -> bool {
    let ends = || (0..=count).map(|number| end(offsets, number));
    (valid.is_empty() || valid.len() == count)
        && offsets.len() == 4 * (count + 1)
        && ends().zip(ends().skip(1)).all(|(start, end)| start <= end)
        && end(offsets, count) - end(offsets, 0) <= data.len() as i64
}

fn part<'a>((valid, offsets, data): Binary<'a>, number: usize) -> Option<&'a [u8]> {
    if valid.get(number) == Some(&0) {
        return None;
    }
    let place = |number| (end(offsets, number) - end(offsets, 0)) as usize;
    Some(&data[place(number)..place(number + 1)])
}

fn end(offsets: &[u8], number: usize) -> i64 {
    let bytes = &offsets[4 * number..4 * number + 4];
    i32::from_ne_bytes(bytes.try_into().expect("four bytes")).into()
}
