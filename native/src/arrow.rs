//! Columns in the layout of Arrow (https://arrow.apache.org/docs/format/Columnar.html), each buffer as `bytes`.
//!
//! Strategy: `pyarrow.Array.from_buffers` takes any Python object that has a buffer, so that no raw pointer is exchanged and
//! no `unsafe` is needed, unlike with the C data interface. Sizes are computed first; then all `bytes` are made and filled
//! in place, without the GIL: nobody else has them yet.
use std::ops::Range;

use pyo3::exceptions::{PyIndexError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

pub type Buffer<'py> = Bound<'py, PyBytes>;
/// Validity (empty if nothing is null), offsets, data.
pub type BinaryBuffers<'py> = (Buffer<'py>, Buffer<'py>, Buffer<'py>);

/// What the offsets of a binary column are, and how many bytes it may have.
#[derive(Clone, Copy)]
pub struct Width {
    wide: bool,
    most: usize,
}

impl Width {
    /// 64-bit offsets (`large_binary`) if `wide`, otherwise 32-bit ones; at most `most` bytes in any case.
    pub fn new(wide: bool, most: usize) -> Self {
        Width {
            wide,
            most: if wide {
                most
            } else {
                most.min(i32::MAX as usize)
            },
        }
    }

    fn bytes(self) -> usize {
        if self.wide {
            8
        } else {
            4
        }
    }
}

/// How large the buffers of a binary column are.
#[derive(Default)]
pub struct Shape {
    count: usize,
    size: usize,
    nulls: bool,
}

impl Shape {
    /// Of the column in which number `n` is `part(n)`.
    pub fn of<'a>(count: usize, part: impl Fn(usize) -> Option<&'a [u8]>) -> Self {
        let (mut size, mut nulls) = (0, false);
        for number in 0..count {
            match part(number) {
                Some(found) => size += found.len(),
                None => nulls = true,
            }
        }
        Shape { count, size, nulls }
    }

    /// OverflowError if the column is larger than it may be.
    pub fn check(&self, what: &str, width: Width) -> PyResult<()> {
        if self.size > width.most {
            let problem = format!("the {what} have more than {} bytes", width.most);
            return Err(PyOverflowError::new_err(problem));
        }
        Ok(())
    }

    /// The sizes of validity, offsets and data.
    pub fn sizes(&self, width: Width) -> [usize; 3] {
        let bits = if self.nulls {
            self.count.div_ceil(8)
        } else {
            0
        };
        [bits, (self.count + 1) * width.bytes(), self.size]
    }
}

/// Write the column in which number `n` is `part(n)` to its validity, offsets and data, whose sizes are those of its shape.
pub fn write_binary<'a>(
    out: &mut [&mut [u8]],
    width: Width,
    count: usize,
    part: impl Fn(usize) -> Option<&'a [u8]>,
) {
    let [validity, offsets, data] = out else {
        unreachable!("a binary column has three buffers")
    };
    let mut end = 0;
    let mut offsets = offsets.chunks_exact_mut(width.bytes());
    let mut put = |end: usize| {
        let slot = offsets.next().expect("one more offset than values");
        if width.wide {
            slot.copy_from_slice(&(end as i64).to_ne_bytes());
        } else {
            slot.copy_from_slice(&(end as i32).to_ne_bytes()); // `Shape::check`
        }
    };
    put(0);
    for number in 0..count {
        if let Some(found) = part(number) {
            data[end..end + found.len()].copy_from_slice(found);
            end += found.len();
            if !validity.is_empty() {
                set_bit(validity, number);
            }
        }
        put(end);
    }
}

pub fn set_bit(bits: &mut [u8], number: usize) {
    bits[number / 8] |= 1 << (number % 8);
}

/// The slots of a column of 64-bit numbers.
pub fn put_i64(slots: &mut std::slice::ChunksExactMut<'_, u8>, number: i64) {
    let slot = slots.next().expect("as many slots as numbers");
    slot.copy_from_slice(&number.to_ne_bytes());
}

/// The messages from number `first` to `stop` of `count`. IndexError if there are none such.
pub fn between(first: usize, stop: usize, count: usize) -> PyResult<Range<usize>> {
    if first > stop || stop > count {
        let problem = format!("there are no messages {first} to {stop} of {count}");
        return Err(PyIndexError::new_err(problem));
    }
    Ok(first..stop)
}

/// `bytes` of these sizes, which are zero until `fill` writes to them. It runs without the GIL.
pub fn filled<'py>(
    py: Python<'py>,
    sizes: &[usize],
    fill: impl FnOnce(Vec<&mut [u8]>) + Send,
) -> PyResult<Vec<Buffer<'py>>> {
    let mut made = Vec::with_capacity(sizes.len());
    nest(py, sizes, Vec::new(), fill, &mut made)?;
    made.reverse();
    Ok(made)
}

/// As `filled`, which has made `parts`: a `bytes` object can be written to only within the call that makes it.
fn nest<'py>(
    py: Python<'py>,
    sizes: &[usize],
    parts: Vec<&mut [u8]>,
    fill: impl FnOnce(Vec<&mut [u8]>) + Send,
    made: &mut Vec<Buffer<'py>>,
) -> PyResult<()> {
    let Some((&size, rest)) = sizes.split_first() else {
        py.detach(|| fill(parts));
        return Ok(());
    };
    let bytes = PyBytes::new_with(py, size, |out| {
        let mut parts: Vec<&mut [u8]> = parts;
        parts.push(out);
        nest(py, rest, parts, fill, made)
    })?;
    made.push(bytes);
    Ok(())
}
