//! The check of plain messages, of which nothing is kept, in bytes or in a buffer that others may write to.
//!
//! Strategy: what is checked without the interpreter's lock must not change meanwhile. Bytes never do; of any other
//! buffer a window is copied first. Windows grow while they are full of good messages, and stay small enough for the
//! processor's cache, so that a copy costs a small part of the checksum.
use std::cell::Cell;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};

use crate::message::{self, HEADER, LENGTH};
use crate::payloads::part_of;

/// Bytes of a window, at first, and when it has grown; that of a larger message is as large.
const FIRST: usize = 1 << 12;
const LARGEST: usize = 1 << 14;

thread_local! {
    static WINDOW: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What is looked for.
#[derive(Clone, Copy)]
struct Plain {
    longest: usize,
    magic: u8,
    last: bool,
}

impl Plain {
    fn verify(self, data: &[u8], position: usize) -> (usize, usize) {
        message::verify(data, position, self.longest, self.magic, self.last)
    }

    /// Where the message at `position` ends, with all that must follow it; `None` if it cannot be one.
    fn end(self, data: &[u8], position: usize) -> Option<usize> {
        let length = message::be32(data, position)? as usize;
        let header = HEADER[usize::from(self.magic == 1)];
        let behind = if self.last { 0 } else { LENGTH + header };
        let possible = length >= header && length - header <= self.longest;
        possible.then_some(position + LENGTH + length + behind)
    }
}

/// Check the plain messages of `magic` from `position` on, in any contiguous buffer of bytes; returns where the first
/// other thing stands, and how many passed.
///
/// A payload of more than `longest` bytes is another thing, and, unless `last`, so is a message that no header follows.
#[pyfunction]
pub fn verify(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    position: usize,
    longest: usize,
    magic: u8,
    last: bool,
) -> PyResult<(usize, usize)> {
    let plain = Plain {
        longest,
        magic,
        last,
    };
    if let Ok(bytes) = data.cast::<PyBytes>() {
        let data = bytes.as_bytes();
        return Ok(py.detach(|| plain.verify(data, position)));
    }
    if let Ok((holder, begin, size)) = part_of(data) {
        let data = &holder.as_bytes()[begin..begin + size];
        return Ok(py.detach(|| plain.verify(data, position)));
    }
    let mut window = WINDOW.take();
    let found = in_windows(&PyMemoryView::from(data)?, position, plain, &mut window);
    if window.capacity() <= LARGEST {
        WINDOW.set(window);
    }
    found
}

fn in_windows(
    view: &Bound<'_, PyMemoryView>,
    mut position: usize,
    plain: Plain,
    window: &mut Vec<u8>,
) -> PyResult<(usize, usize)> {
    let py = view.py();
    let whole = PyBuffer::<u8>::get(view)?;
    if !whole.is_c_contiguous() {
        return Err(PyValueError::new_err("the data is not contiguous"));
    }
    let slices = py.get_type::<PySlice>();
    let (mut count, mut size) = (0, FIRST);
    loop {
        let Some(rest) = whole.item_count().checked_sub(position) else {
            return Ok((position, count));
        };
        let length = size.min(rest);
        window.reserve_exact(length.saturating_sub(window.len()));
        window.resize(length, 0);
        let end = position + length;
        // Not `PySlice::new`, which never frees the two numbers.
        let part = view.get_item(slices.call1((position, end))?)?;
        PyBuffer::<u8>::get(&part)?.copy_to_slice(py, window)?;
        let (used, passed) = py.detach(|| plain.verify(window, 0));
        position += used;
        count += passed;
        if length == rest {
            return Ok((position, count));
        }
        if 2 * used >= window.len() {
            size = (2 * size).clamp(FIRST, LARGEST);
        }
        if used + LENGTH <= window.len() {
            match plain.end(window, used) {
                // It goes on behind the window.
                Some(end) if end > window.len() && end <= rest => size = size.max(end - used),
                _ => return Ok((position, count)),
            }
        }
    }
}
