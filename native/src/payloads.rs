//! The payloads of a batch as a buffer and an index: objects are made when somebody asks for them.
//!
//! Payloads of plain messages stay where they came from; leaves of wrappers are copied out of the set that they were
//! decompressed to into one arena, so that what is held never exceeds what the same payloads would take as objects.
use std::cell::Cell;
use std::ops::Range;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice, PySliceMethods};

use crate::arrow::{between, filled, put_i64, write_binary, BinaryBuffers, Buffer, Shape, Width};
use crate::identity::{Fields, Lists, MessageKind, Place};
use crate::inflate::{most_pieces, Allowance, Codec, Inflater};
use crate::limits::Limits;
use crate::lines::{write_line, write_row, Frame};
use crate::message::{look, Looked, Message, HEADER};

/// What a payload costs as an object beside its bytes (`consumerd.wire.batch.OVERHEAD_PER_MESSAGE`).
const OBJECT: usize = 48;
/// Bytes of plain messages, and bytes that come out of wrappers, in one step.
const STEP_PLAIN: usize = 1 << 22;
const STEP_EXPANDED: usize = 1 << 20;
/// What a payload costs in the index.
const RANGE: usize = std::mem::size_of::<(u32, u32)>();
/// A buffer that is larger is not kept for the next batch.
const KEPT: usize = 1 << 22;

/// What is needed for opening wrappers: the decompressors, and a buffer for each level.
struct Opener {
    inflater: Inflater,
    levels: Vec<Vec<u8>>,
}

thread_local! {
    static OPENER: Cell<Option<Box<Opener>>> = const { Cell::new(None) };
}

/// The one of this thread, for as long as it is borrowed.
struct Borrowed(Option<Box<Opener>>);

impl Borrowed {
    fn get(&mut self) -> &mut Opener {
        self.0.get_or_insert_with(|| {
            OPENER.take().unwrap_or_else(|| {
                Box::new(Opener {
                    inflater: Inflater::new(),
                    levels: Vec::new(),
                })
            })
        })
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(mut opener) = self.0.take() {
            opener.levels.truncate(2);
            opener.levels.retain(|level| level.len() <= KEPT);
            OPENER.set(Some(opener));
        }
    }
}

/// Where payloads are: below `shared` in the data, from there on in the arena.
#[derive(Default)]
struct Index {
    shared: usize,
    arena: Vec<u8>,
    ranges: Vec<(u32, u32)>,
    /// Number of the first payload, position in the data, bytes before each payload (0 for a wrapper).
    runs: Vec<(usize, usize, usize)>,
    payload_bytes: usize,
    expanded: usize,
}

impl Index {
    fn plain(&mut self, position: usize, message: &Message) {
        if self.runs.last().is_none_or(|run| run.2 != message.overhead) {
            self.runs
                .push((self.ranges.len(), position, message.overhead));
        }
        self.ranges
            .push((message.start as u32, (message.end - message.start) as u32));
        self.payload_bytes += message.end - message.start;
    }

    fn copied(&mut self, payload: &[u8]) {
        self.ranges.push((
            (self.shared + self.arena.len()) as u32,
            payload.len() as u32,
        ));
        self.arena.extend_from_slice(payload);
        self.payload_bytes += payload.len();
    }

    /// The leaves of a wrapper, or nothing of it.
    fn wrapper(
        &mut self,
        position: usize,
        message: &Message,
        data: &[u8],
        limits: &Limits,
        opener: &mut Opener,
    ) -> bool {
        if self.shared + self.arena.len() + limits.max_wrapper_bytes > u32::MAX as usize {
            return false;
        }
        let before = (self.ranges.len(), self.arena.len(), self.payload_bytes);
        let payload = &data[message.start..message.end];
        let mut allowance = Allowance {
            bytes: limits.max_wrapper_bytes,
            pieces: limits.max_pieces.saturating_add(most_pieces(payload.len())),
        };
        if self
            .flatten(message.codec, payload, 1, &mut allowance, limits, opener)
            .is_none()
        {
            self.ranges.truncate(before.0);
            self.arena.truncate(before.1);
            self.payload_bytes = before.2;
            return false;
        }
        self.runs.push((before.0, position, 0));
        self.expanded += limits.max_wrapper_bytes - allowance.bytes;
        true
    }

    fn flatten(
        &mut self,
        codec: Codec,
        payload: &[u8],
        depth: usize,
        allowance: &mut Allowance,
        limits: &Limits,
        opener: &mut Opener,
    ) -> Option<()> {
        if opener.levels.len() < depth {
            opener.levels.push(Vec::new());
        }
        let mut level = std::mem::take(&mut opener.levels[depth - 1]);
        let found = opener
            .inflater
            .open(codec, payload, &mut level, allowance, depth > 1)
            .and_then(|size| self.leaves(&level[..size], depth, allowance, limits, opener));
        opener.levels[depth - 1] = level;
        found
    }

    fn leaves(
        &mut self,
        set: &[u8],
        depth: usize,
        allowance: &mut Allowance,
        limits: &Limits,
        opener: &mut Opener,
    ) -> Option<()> {
        let mut position = 0;
        while position < set.len() {
            let message = match look(set, position, usize::MAX) {
                Looked::Whole(message) => message,
                // A cut-off end does not count, unless it is all there is.
                Looked::Cut if position > 0 || set.len() < 4 => break,
                Looked::Cut | Looked::Bad => return None,
            };
            let payload = &set[message.start..message.end];
            if message.codec == Codec::None {
                self.copied(payload);
            } else if depth >= limits.max_depth {
                return None;
            } else {
                self.flatten(message.codec, payload, depth + 1, allowance, limits, opener)?;
            }
            position = message.end;
        }
        Some(())
    }

    fn is_full(&self, limits: &Limits) -> bool {
        self.payload_bytes + OBJECT * self.ranges.len() >= limits.max_batch_bytes
            || self.expanded >= limits.max_decompressed_bytes
    }

    /// Read on from `position`: up to what stands there, and whether that is for the lack of a further step only.
    fn read(&mut self, data: &[u8], mut position: usize, limits: &Limits) -> (usize, bool) {
        let longest = limits.max_message_bytes.saturating_add(HEADER[1]);
        let (start, expanded) = (position, self.expanded);
        let mut opener = Borrowed(None);
        while let Looked::Whole(message) = look(data, position, longest) {
            if message.codec == Codec::None {
                self.plain(position, &message);
            } else if self.is_full(limits)
                || !self.wrapper(position, &message, data, limits, opener.get())
            {
                break;
            }
            position = message.end;
            if position - start >= STEP_PLAIN || self.expanded - expanded >= STEP_EXPANDED {
                return (position, true);
            }
        }
        (position, false)
    }

    /// The position of payload number `first` of a plain run, if that is where `run` begins; that of a wrapper.
    fn position_in(&self, run: (usize, usize, usize), first: usize) -> usize {
        let (begin, position, overhead) = run;
        if overhead == 0 {
            return position;
        }
        let before = self.ranges[begin..first.max(begin)].iter();
        position
            + before
                .map(|range| range.1 as usize + overhead)
                .sum::<usize>()
    }

    /// Write offset, index and next offset of each payload in `numbers` as 64-, 32- and 64-bit numbers.
    ///
    /// `offset` is that of the data, `next_offset` follows the last message.
    fn write_places(
        &self,
        out: &mut [&mut [u8]],
        numbers: Range<usize>,
        offset: i64,
        next_offset: i64,
    ) {
        let [offsets, indexes, nexts] = out else {
            unreachable!("a place has three columns")
        };
        let mut offsets = offsets.chunks_exact_mut(8);
        let mut indexes = indexes.chunks_exact_mut(4);
        let mut nexts = nexts.chunks_exact_mut(8);
        let at = |position: usize| offset.wrapping_add(position as i64);
        let mut run = self.runs.partition_point(|run| run.0 <= numbers.start);
        let mut number = numbers.start;
        while number < numbers.end {
            let (begin, position, overhead) = self.runs[run - 1];
            let following = self.runs.get(run);
            let end = following.map_or(self.ranges.len(), |next| next.0);
            let stop = end.min(numbers.end);
            if overhead > 0 {
                let mut position = self.position_in(self.runs[run - 1], number);
                for range in &self.ranges[number..stop] {
                    put_i64(&mut offsets, at(position));
                    indexes.next(); // stays 0
                    position += overhead + range.1 as usize;
                    put_i64(&mut nexts, at(position));
                }
            } else {
                for each in number..stop {
                    put_i64(&mut offsets, at(position));
                    let slot = indexes.next().expect("as many slots as numbers");
                    slot.copy_from_slice(&((each - begin) as i32).to_ne_bytes());
                    // Of a wrapper's leaves only the last moves the position.
                    let behind = following.map_or(next_offset, |next| at(next.1));
                    put_i64(
                        &mut nexts,
                        if each + 1 == end {
                            behind
                        } else {
                            at(position)
                        },
                    );
                }
            }
            number = stop;
            run += 1;
        }
    }

    fn slice<'a>(&'a self, data: &'a [u8], number: usize) -> &'a [u8] {
        let (start, size) = self.ranges[number];
        let (start, size) = (start as usize, size as usize);
        if start < self.shared {
            &data[start..start + size]
        } else {
            &self.arena[start - self.shared..start - self.shared + size]
        }
    }

    fn json_lines(
        &self,
        data: &[u8],
        head: &[u8],
        offset: i64,
        first: usize,
        lines: usize,
        bytes: usize,
    ) -> (Vec<u8>, usize) {
        let stop = self.ranges.len().min(first.saturating_add(lines));
        let mut text = Vec::with_capacity(
            bytes.min((head.len() + 64) * stop.saturating_sub(first) + self.payload_bytes),
        );
        let mut run = self
            .runs
            .partition_point(|run| run.0 <= first)
            .saturating_sub(1);
        // Where the message in hand stands, if its run is plain.
        let mut position = self.runs.get(run).map_or(0, |&run| {
            if run.2 > 0 {
                self.position_in(run, first)
            } else {
                run.1
            }
        });
        for number in first..stop {
            while self.runs.get(run + 1).is_some_and(|next| next.0 <= number) {
                run += 1;
                position = self.runs[run].1;
            }
            let (begin, _, overhead) = self.runs[run];
            let (payload, before) = (self.slice(data, number), text.len());
            let index = if overhead > 0 { 0 } else { number - begin };
            write_line(&mut text, head, offset + position as i64, index, payload);
            if text.len() > bytes && number > first {
                text.truncate(before);
                return (text, number);
            }
            if overhead > 0 {
                position += overhead + payload.len();
            }
        }
        (text, stop.max(first))
    }

    /// The messages `numbers`, which are of one run, as rows of an export at the end of `out`.
    fn rows(
        &self,
        out: &mut Vec<u8>,
        data: &[u8],
        frame: &Frame<'_>,
        numbers: Range<usize>,
        offset: i64,
        next_offset: i64,
    ) {
        let run = self.runs.partition_point(|run| run.0 <= numbers.start);
        let (begin, position, overhead) = self.runs[run - 1];
        let (end, behind) = self
            .runs
            .get(run)
            .map_or((self.ranges.len(), next_offset), |next| {
                (next.0, offset + next.1 as i64)
            });
        let mut position = if overhead > 0 {
            self.position_in(self.runs[run - 1], numbers.start)
        } else {
            position
        };
        for number in numbers {
            let (payload, at) = (self.slice(data, number), offset + position as i64);
            let place = if overhead > 0 {
                position += overhead + payload.len();
                (at, 0, offset + position as i64)
            } else {
                (
                    at,
                    number - begin,
                    if number + 1 == end { behind } else { at },
                )
            };
            write_row(out, frame, place, payload);
        }
    }

    /// Copy what lies in the data, for which `whole` bytes are held, if that is little else than other things. Whether the data is still needed.
    fn settle(&mut self, data: &[u8], whole: usize) -> bool {
        let held = whole + self.arena.len() + RANGE * self.ranges.len();
        if held > self.payload_bytes + OBJECT * self.ranges.len() {
            let mut arena = Vec::with_capacity(self.payload_bytes);
            for number in 0..self.ranges.len() {
                arena.extend_from_slice(self.slice(data, number));
            }
            let mut end = 0;
            for range in &mut self.ranges {
                range.0 = end;
                end += range.1;
            }
            self.arena = arena;
            self.shared = 0;
        }
        self.ranges.shrink_to_fit();
        self.arena.shrink_to_fit();
        self.shared > 0 && self.runs.iter().any(|run| run.2 > 0)
    }
}

/// How many sizes from the beginning are at most `size` together, and what these are.
pub fn within(sizes: impl Iterator<Item = usize>, size: usize) -> (usize, usize) {
    let (mut count, mut used) = (0, 0);
    for each in sizes {
        if each > size - used {
            break;
        }
        used += each;
        count += 1;
    }
    (count, used)
}

/// The bytes that a memoryview is of, and which part of them.
pub fn part_of<'py>(data: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyBytes>, usize, usize)> {
    let view = PyBuffer::<u8>::get(data)?;
    let holder = data.getattr("obj")?.cast_into::<PyBytes>()?;
    let bytes = holder.as_bytes();
    let (begin, size) = (
        (view.buf_ptr() as usize).wrapping_sub(bytes.as_ptr() as usize),
        view.len_bytes(),
    );
    if !view.is_c_contiguous() || begin > bytes.len() || size > bytes.len() - begin {
        return Err(PyValueError::new_err(
            "the data is not a contiguous part of bytes",
        ));
    }
    Ok((holder, begin, size))
}

/// A sequence of `bytes`, which are created at each access.
#[pyclass(module = "consumerd_native", sequence)]
pub struct Payloads {
    /// What holds the message set, and where that begins in it.
    data: Option<Py<PyBytes>>,
    begin: usize,
    index: Index,
}

impl Payloads {
    fn data<'a>(&'a self, py: Python<'_>) -> &'a [u8] {
        let end = self.begin + self.index.shared;
        self.data
            .as_ref()
            .map_or(&[], |data| &data.as_bytes(py)[self.begin..end])
    }

    fn make<'py>(&self, py: Python<'py>, number: usize) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.index.slice(self.data(py), number))
    }
}

#[pymethods]
impl Payloads {
    /// Nothing as yet of the message set `data`: bytes, or a part of bytes as a memoryview.
    ///
    /// Positions in it and in what comes out of it have 32 bits.
    #[new]
    fn new(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (holder, begin, shared) = match data.cast::<PyBytes>() {
            Ok(bytes) => (bytes.clone(), 0, bytes.as_bytes().len()),
            Err(_) => part_of(data)?,
        };
        if u32::try_from(shared).is_err() {
            return Err(PyValueError::new_err("the data has more than 4 GiB"));
        }
        Ok(Payloads {
            data: Some(holder.unbind()),
            begin,
            index: Index {
                shared,
                ..Index::default()
            },
        })
    }

    /// Take the messages from `position` on, as long as they are whole and intact: returns where the next thing stands,
    /// and whether it is only left for another step.
    fn read(
        &mut self,
        py: Python<'_>,
        position: usize,
        limits: &Bound<'_, Limits>,
    ) -> (usize, bool) {
        let end = self.begin + self.index.shared;
        let data: &[u8] = self
            .data
            .as_ref()
            .map_or(&[], |data| &data.as_bytes(py)[self.begin..end]);
        let (index, limits) = (&mut self.index, limits.get());
        py.detach(|| index.read(data, position, limits))
    }

    /// Whether no further wrapper is taken.
    fn is_full(&self, limits: &Bound<'_, Limits>) -> bool {
        self.index.is_full(limits.get())
    }

    /// Add a plain message that stands at `position`.
    fn append(&mut self, position: usize, payload: &[u8], overhead: usize) -> PyResult<()> {
        self.room(payload.len())?;
        if self.index.runs.last().is_none_or(|run| run.2 != overhead) {
            self.index
                .runs
                .push((self.index.ranges.len(), position, overhead));
        }
        self.index.copied(payload);
        Ok(())
    }

    /// Add the leaves of the wrapper at `position`, whose sets have `expanded` bytes.
    fn extend(
        &mut self,
        position: usize,
        payloads: Vec<Bound<'_, PyBytes>>,
        expanded: usize,
    ) -> PyResult<()> {
        self.room(
            payloads
                .iter()
                .map(|payload| payload.as_bytes().len())
                .sum(),
        )?;
        self.index.runs.push((self.index.ranges.len(), position, 0));
        for payload in &payloads {
            self.index.copied(payload.as_bytes());
        }
        self.index.expanded += expanded;
        Ok(())
    }

    /// Nothing more will be added: hold no more than the payloads would take as objects.
    fn settle(&mut self, py: Python<'_>) {
        let whole: &[u8] = self.data.as_ref().map_or(&[], |data| data.as_bytes(py));
        let (data, index) = (
            &whole[self.begin..self.begin + self.index.shared],
            &mut self.index,
        );
        if !py.detach(|| index.settle(data, whole.len())) {
            self.data = None;
        }
    }

    /// Of each run the number of its first payload, its position in the data, and what each message has beside its
    /// payload: 0 for a wrapper.
    #[getter]
    fn runs(&self) -> Vec<(usize, usize, usize)> {
        self.index.runs.clone()
    }

    /// Bytes that came out of wrappers, those within wrappers among them.
    #[getter]
    fn expanded_bytes(&self) -> usize {
        self.index.expanded
    }

    #[getter]
    fn payload_bytes(&self) -> usize {
        self.index.payload_bytes
    }

    /// Bytes that are held.
    #[getter]
    fn held_bytes(&self, py: Python<'_>) -> usize {
        self.data.as_ref().map_or(0, |data| data.as_bytes(py).len())
            + self.index.arena.capacity()
            + RANGE * self.index.ranges.capacity()
    }

    /// Bytes of payloads number `first` to `stop`.
    fn size_between(&self, first: usize, stop: usize) -> usize {
        let stop = stop.min(self.index.ranges.len());
        self.index.ranges[first.min(stop)..stop]
            .iter()
            .map(|range| range.1 as usize)
            .sum()
    }

    /// The number behind the last of the payloads from number `first` to `stop` that have at most `size` bytes together, and
    /// how many these have.
    fn fitting(&self, first: usize, stop: usize, size: usize) -> PyResult<(usize, usize)> {
        let numbers = between(first, stop, self.index.ranges.len())?;
        let sizes = self.index.ranges[numbers].iter();
        let (count, used) = within(sizes.map(|range| range.1 as usize), size);
        Ok((first + count, used))
    }

    /// The messages of a kind from number `first` to `stop`, in lists of at most `most`.
    ///
    /// `offset` is that of the data, `next_offset` follows the last message. Raises IndexError for numbers that there are not.
    #[allow(clippy::too_many_arguments)]
    fn messages(
        slf: Bound<'_, Self>,
        kind: Py<MessageKind>,
        first: usize,
        stop: usize,
        offset: i64,
        next_offset: i64,
        most: usize,
    ) -> PyResult<MessageLists> {
        let payloads = slf.try_borrow()?;
        let (index, numbers) = (&payloads.index, between(first, stop, payloads.__len__())?);
        let run = index.runs.partition_point(|run| run.0 <= first);
        let position = if run > 0 {
            index.position_in(index.runs[run - 1], first)
        } else {
            0
        };
        drop(payloads);
        Ok(MessageLists {
            payloads: slf.unbind(),
            lists: Lists::new(kind),
            numbers,
            run,
            position,
            offset,
            next_offset,
            most,
        })
    }

    /// The messages from number `first` to `stop` as the buffers of Arrow columns: payload; offset, index (32 bits) and next
    /// offset, as 64-bit numbers.
    ///
    /// `offset` is that of the data, `next_offset` follows the last message. Payloads have at most `most` bytes, and 64-bit
    /// offsets if `wide`. Raises OverflowError for larger ones, IndexError for numbers that there are not.
    #[allow(clippy::too_many_arguments)]
    fn arrow<'py>(
        &self,
        py: Python<'py>,
        first: usize,
        stop: usize,
        offset: i64,
        next_offset: i64,
        most: usize,
        wide: bool,
    ) -> PyResult<(BinaryBuffers<'py>, Buffer<'py>, Buffer<'py>, Buffer<'py>)> {
        let (index, data) = (&self.index, self.data(py));
        let numbers = between(first, stop, index.ranges.len())?;
        let (count, width) = (numbers.len(), Width::new(wide, most));
        let part = |number: usize| Some(index.slice(data, first + number));
        let shape = py.detach(|| Shape::of(count, part));
        shape.check("payloads", width)?;
        let [validity, offsets, size] = shape.sizes(width);
        let sizes = [validity, offsets, size, 8 * count, 4 * count, 8 * count];
        let buffers = filled(py, &sizes, |mut out| {
            write_binary(&mut out[..3], width, count, part);
            index.write_places(&mut out[3..], numbers, offset, next_offset);
        })?;
        let mut buffers = buffers.into_iter();
        let mut next = || buffers.next().expect("a buffer for each size");
        Ok(((next(), next(), next()), next(), next(), next()))
    }

    /// The messages from number `first` on as NDJSON: at most `lines` of them, and no more than `bytes` unless it is one.
    ///
    /// Each line begins with `head`. `offset` is that of the data. Returns the lines and the number of the next message.
    fn json_lines<'py>(
        &self,
        py: Python<'py>,
        head: &[u8],
        offset: i64,
        first: usize,
        lines: usize,
        bytes: usize,
    ) -> (Bound<'py, PyBytes>, usize) {
        let (index, data) = (&self.index, self.data(py));
        let (text, next) = py.detach(|| index.json_lines(data, head, offset, first, lines, bytes));
        (PyBytes::new(py, &text), next)
    }

    /// The messages from number `first` to `stop`, which are of one run, as rows of an export in NDJSON.
    ///
    /// A row: `head`, offset, index, next offset, `kind`, payload (in base64 if `base64`), `tail`. `offset` is that of the
    /// data, `next_offset` follows the last message. Raises IndexError for numbers that there are not in one run.
    #[allow(clippy::too_many_arguments)]
    fn json_rows<'py>(
        &self,
        py: Python<'py>,
        first: usize,
        stop: usize,
        offset: i64,
        next_offset: i64,
        head: &[u8],
        kind: &[u8],
        tail: &[u8],
        base64: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (index, data) = (&self.index, self.data(py));
        let numbers = between(first, stop, index.ranges.len())?;
        let run = index.runs.partition_point(|run| run.0 <= first);
        if index.runs.get(run).is_some_and(|next| next.0 < stop) {
            return Err(PyIndexError::new_err("the messages are of several runs"));
        }
        if numbers.is_empty() {
            return Ok(PyBytes::new(py, b""));
        }
        let frame = Frame {
            head,
            kind,
            tail,
            base64,
        };
        let text = py.detach(|| {
            let each = head.len() + kind.len() + tail.len() + 64;
            let payloads: usize = index.ranges[numbers.clone()]
                .iter()
                .map(|range| range.1 as usize)
                .sum();
            let mut text = Vec::with_capacity(each * numbers.len() + payloads + payloads / 8);
            index.rows(&mut text, data, &frame, numbers, offset, next_offset);
            text
        });
        Ok(PyBytes::new(py, &text))
    }

    fn __len__(&self) -> usize {
        self.index.ranges.len()
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        at: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let count = self.index.ranges.len();
        if let Ok(slice) = at.cast::<PySlice>() {
            let found = slice.indices(count as isize)?;
            let numbers = (0..found.slicelength)
                .map(|turn| (found.start + turn as isize * found.step) as usize);
            return Ok(PyList::new(py, numbers.map(|number| self.make(py, number)))?.into_any());
        }
        let number: isize = at.extract()?;
        let number = if number < 0 {
            number + count as isize
        } else {
            number
        };
        if number < 0 || number as usize >= count {
            return Err(PyIndexError::new_err("there is no such payload"));
        }
        Ok(self.make(py, number as usize).into_any())
    }

    fn __iter__(slf: Bound<'_, Self>) -> PayloadIterator {
        PayloadIterator {
            payloads: slf.unbind(),
            number: 0,
        }
    }
}

impl Payloads {
    fn room(&self, size: usize) -> PyResult<()> {
        if u32::try_from(self.index.shared + self.index.arena.len() + size).is_err() {
            return Err(PyValueError::new_err("the payloads have more than 4 GiB"));
        }
        Ok(())
    }
}

#[pyclass(module = "consumerd_native")]
pub struct PayloadIterator {
    payloads: Py<Payloads>,
    number: usize,
}

#[pymethods]
impl PayloadIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let payloads = self.payloads.bind(py).try_borrow()?;
        if self.number >= payloads.index.ranges.len() {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(payloads.make(py, self.number - 1)))
    }
}

/// Lists of messages, which are made as they are asked for.
#[pyclass(module = "consumerd_native")]
pub struct MessageLists {
    payloads: Py<Payloads>,
    lists: Lists,
    /// Of those that are left.
    numbers: Range<usize>,
    /// Number of the run behind the one of the next message, and where that message is in the data.
    run: usize,
    position: usize,
    offset: i64,
    next_offset: i64,
    most: usize,
}

#[pymethods]
impl MessageLists {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let payloads = self.payloads.bind(py).try_borrow()?;
        let (index, data) = (&payloads.index, payloads.data(py));
        let stop = self.numbers.end.min(self.numbers.start + self.most);
        if self.numbers.start == stop {
            return Ok(None);
        }
        let (from, next_offset) = (self.offset, self.next_offset);
        let at = |position: usize| from.wrapping_add(position as i64);
        let (mut position, mut number_of_run) = (self.position, self.run);
        let mut numbers = self.numbers.start..stop;
        let found = self.lists.list(py, numbers.len(), || {
            let number = numbers.next().expect("as many as are asked for");
            let mut following = index.runs.get(number_of_run);
            while let Some(run) = following.filter(|run| run.0 <= number) {
                position = run.1;
                number_of_run += 1;
                following = index.runs.get(number_of_run);
            }
            let (begin, _, overhead) = index.runs[number_of_run - 1];
            let (payload, offset) = (index.slice(data, number), at(position));
            let place = if overhead > 0 {
                position += overhead + payload.len();
                Place {
                    offset,
                    index: 0,
                    next_offset: at(position),
                }
            } else {
                // Of a wrapper's leaves only the last moves the position.
                let end = following.map_or(index.ranges.len(), |run| run.0);
                let behind = following.map_or(next_offset, |run| at(run.1));
                Place {
                    offset,
                    index: (number - begin) as u32,
                    next_offset: if number + 1 == end { behind } else { offset },
                }
            };
            Ok(Fields {
                place,
                payload: Some(PyBytes::new(py, payload).unbind()),
                keyed: None,
            })
        })?;
        (self.position, self.run) = (position, number_of_run);
        self.numbers.start = stop;
        Ok(Some(found))
    }
}
