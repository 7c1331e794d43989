//! The records of a fetch from a broker of 0.8 or later, as buffers and an index: objects are made when asked for.
use std::borrow::Cow;
use std::cell::Cell;
use std::ops::Range as Numbers;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice, PySliceMethods, PyString, PyTuple};

use crate::arrow::{between, filled, write_binary, BinaryBuffers, Buffer, Shape, Width};
use crate::identity::{Fields, Keyed, Lists, MessageKind, Place as MessagePlace};
use crate::inflate::Inflater;
use crate::limits::Limits;
use crate::payloads::{part_of, within};

pub mod batch;
pub mod checking;
mod columns;
pub mod kinds;
pub mod old;
mod reader;
pub mod varint;

use columns::{Columns, Offsets, Range, Run};
use reader::{Aborted, Opener, Reader, State, KEPT};

thread_local! {
    static OPENER: Cell<Option<Box<Opener>>> = const { Cell::new(None) };
}

/// Do something with what decompresses, which is kept for the next time unless it has become large.
fn with_opener<T>(work: impl FnOnce(&mut Opener) -> T) -> T {
    let mut opener = OPENER.take().unwrap_or_else(|| {
        Box::new(Opener {
            inflater: Inflater::new(),
            buffer: Vec::new(),
        })
    });
    let done = work(&mut opener);
    if opener.buffer.len() <= KEPT {
        OPENER.set(Some(opener));
    }
    done
}

/// Bytes up to which data are read with the GIL held: releasing it costs more than reading what comes alone, and another
/// thread that takes it meanwhile may keep it for milliseconds.
const SMALL: usize = 4096;

/// What stands behind (position, least offset that may follow, next offset, decompressed bytes).
type Place = (usize, i64, i64, usize);

/// Offsets of the lists; name; value.
type HeaderBuffers<'py> = (Buffer<'py>, BinaryBuffers<'py>, BinaryBuffers<'py>);

/// Value; key and headers, if there are any; offset, next offset; validity of the times, and these.
type ArrowBuffers<'py> = (
    BinaryBuffers<'py>,
    Option<BinaryBuffers<'py>>,
    Option<HeaderBuffers<'py>>,
    Buffer<'py>,
    Buffer<'py>,
    (Buffer<'py>, Buffer<'py>),
);

/// A sequence of values: `bytes`, or None for null. Keys, headers, offsets and times go with them.
#[pyclass(module = "consumerd_native", sequence)]
pub struct Records {
    /// What holds the record data, and where that begins in it.
    data: Option<Py<PyBytes>>,
    begin: usize,
    offset: i64,
    aborted: Aborted,
    columns: Columns,
    /// The leader's epoch of what was read, if that had one.
    #[pyo3(get, set)]
    leader_epoch: Option<i32>,
}

impl Records {
    fn data<'a>(&'a self, py: Python<'_>) -> &'a [u8] {
        let end = self.begin + self.columns.shared;
        self.data
            .as_ref()
            .map_or(&[], |data| &data.as_bytes(py)[self.begin..end])
    }

    /// The headers of the records with these numbers, and behind how many of them each list ends.
    #[allow(clippy::type_complexity)]
    fn parsed_headers<'a>(
        &'a self,
        data: &'a [u8],
        numbers: Numbers<usize>,
    ) -> Option<(Vec<(Cow<'a, str>, Option<&'a [u8]>)>, Vec<i32>)> {
        let all = &self.columns.headers;
        let begin = all.partition_point(|range| (range.number as usize) < numbers.start);
        let mut ranges = all[begin..].iter().peekable();
        let (mut pairs, mut ends) = (Vec::new(), Vec::new());
        if (ranges.peek()).is_none_or(|range| range.number as usize >= numbers.end) {
            return Some((pairs, ends));
        }
        ends.reserve(numbers.len() + 1);
        ends.push(0);
        for number in numbers {
            if let Some(range) = ranges.next_if(|range| range.number as usize == number) {
                let bytes = self.columns.slice(data, (range.start, range.size))?;
                let found = batch::headers(bytes)?.into_iter();
                pairs.extend(found.map(|(name, value)| (String::from_utf8_lossy(name), value)));
            }
            ends.push(i32::try_from(pairs.len()).ok()?);
        }
        Some((pairs, ends))
    }

    fn arrow_headers<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        numbers: Numbers<usize>,
    ) -> PyResult<Option<HeaderBuffers<'py>>> {
        let (pairs, ends) = py
            .detach(|| self.parsed_headers(data, numbers))
            .ok_or_else(|| PyValueError::new_err("the headers are gone"))?;
        if ends.is_empty() {
            return Ok(None);
        }
        let width = Width::new(false, usize::MAX);
        let name = |number: usize| Some(pairs[number].0.as_bytes());
        let value = |number: usize| pairs[number].1;
        let (names, values) = (Shape::of(pairs.len(), name), Shape::of(pairs.len(), value));
        names.check("names of headers", width)?;
        values.check("values of headers", width)?;
        let mut sizes = vec![4 * ends.len()];
        sizes.extend(names.sizes(width));
        sizes.extend(values.sizes(width));
        let buffers = filled(py, &sizes, |mut out| {
            for (slot, end) in out[0].chunks_exact_mut(4).zip(&ends) {
                slot.copy_from_slice(&end.to_ne_bytes());
            }
            write_binary(&mut out[1..4], width, pairs.len(), name);
            write_binary(&mut out[4..], width, pairs.len(), value);
        })?;
        let mut buffers = buffers.into_iter();
        let mut next = || buffers.next().expect("a buffer for each size");
        Ok(Some((
            next(),
            (next(), next(), next()),
            (next(), next(), next()),
        )))
    }

    fn make<'py>(&self, py: Python<'py>, data: &[u8], range: Range) -> Option<Bound<'py, PyBytes>> {
        self.columns
            .slice(data, range)
            .map(|found| PyBytes::new(py, found))
    }
}

#[pymethods]
impl Records {
    /// Nothing as yet of the record data `data`, fetched at `offset`: bytes, or a part of bytes as a memoryview.
    ///
    /// `aborted`: producer id and first offset of each aborted transaction.
    #[new]
    fn new(data: &Bound<'_, PyAny>, offset: i64, aborted: Vec<(i64, i64)>) -> PyResult<Self> {
        let (holder, begin, shared) = match data.cast::<PyBytes>() {
            Ok(bytes) => (bytes.clone(), 0, bytes.as_bytes().len()),
            Err(_) => part_of(data)?,
        };
        if u32::try_from(shared).is_err() {
            return Err(PyValueError::new_err("the data has more than 4 GiB"));
        }
        Ok(Records {
            data: Some(holder.unbind()),
            begin,
            offset,
            aborted: Aborted::new(aborted),
            columns: Columns::new(shared),
            leader_epoch: None,
        })
    }

    /// Take messages and batches from a place on, as long as they are whole, intact, of one leader epoch and have room;
    /// returns the place where the next thing stands.
    fn read(&mut self, py: Python<'_>, place: Place, limits: &Bound<'_, Limits>) -> Place {
        let end = self.begin + self.columns.shared;
        let data: &[u8] = self
            .data
            .as_ref()
            .map_or(&[], |data| &data.as_bytes(py)[self.begin..end]);
        let (position, least, next_offset, expanded) = place;
        let mut reader = Reader {
            data,
            offset: self.offset,
            limits: limits.get(),
            columns: &mut self.columns,
            aborted: &mut self.aborted,
            state: State {
                position,
                least,
                next_offset,
                expanded,
                leader_epoch: self.leader_epoch,
            },
        };
        let size = data.len();
        let mut read = || {
            with_opener(|opener| reader.read(opener));
            reader.state
        };
        let state = if size <= SMALL {
            read()
        } else {
            py.detach(read)
        };
        self.leader_epoch = state.leader_epoch;
        (
            state.position,
            state.least,
            state.next_offset,
            state.expanded,
        )
    }

    /// Add a run that was read elsewhere: values, keys, offsets, kind of times, base time, times, codec; and what the
    /// records cost (`RecordColumns.record_bytes`). Their headers are kept elsewhere, too.
    #[allow(clippy::too_many_arguments)]
    fn add(
        &mut self,
        values: Vec<Option<Bound<'_, PyBytes>>>,
        keys: Vec<Option<Bound<'_, PyBytes>>>,
        offsets: Vec<i64>,
        kind: i8,
        base_time: i64,
        times: Vec<i64>,
        codec: u8,
        record_bytes: usize,
    ) -> PyResult<()> {
        let columns = &mut self.columns;
        let sizes = values.iter().chain(&keys).flatten();
        let size: usize = sizes.map(|found| found.as_bytes().len()).sum();
        if u32::try_from(columns.shared + columns.arena.len() + size).is_err() {
            return Err(PyValueError::new_err("the records have more than 4 GiB"));
        }
        let first = columns.values.len();
        let mut found = Offsets::default();
        for (((value, key), offset), time) in values.iter().zip(&keys).zip(offsets).zip(times) {
            let mut keep = |bytes: &Option<Bound<'_, PyBytes>>| {
                bytes.as_ref().map(|bytes| {
                    let start = columns.keep(bytes.as_bytes());
                    (start, start + bytes.as_bytes().len())
                })
            };
            let (key, value) = (keep(key), keep(value));
            columns.push(0, key, value, time);
            found.push(&mut columns.listed, offset);
        }
        columns.runs.push(Run {
            first,
            offsets: found,
            kind,
            base_time,
            codec,
        });
        columns.record_bytes += record_bytes;
        Ok(())
    }

    /// Whether transactions are known that are or will be aborted.
    #[getter]
    fn any_aborted(&self) -> bool {
        self.aborted.any()
    }

    /// Whether a batch of a producer, with this last offset, is of an aborted transaction.
    fn is_aborted(&mut self, producer: i64, last: i64) -> bool {
        self.aborted.covers(producer, last)
    }

    /// The aborted transaction of a producer, if there is one, ends.
    fn end_aborted(&mut self, producer: i64) {
        self.aborted.end(producer);
    }

    /// What the records cost beside the objects of their values.
    #[getter]
    fn record_bytes(&self) -> usize {
        self.columns.record_bytes
    }

    /// Nothing more will be added: hold no more than the records would take as objects.
    fn settle(&mut self, py: Python<'_>) {
        let whole: &[u8] = self.data.as_ref().map_or(&[], |data| data.as_bytes(py));
        let (data, columns) = (
            &whole[self.begin..self.begin + self.columns.shared],
            &mut self.columns,
        );
        let mut settle = || columns.settle(data, whole.len());
        let kept = if whole.len() <= SMALL {
            settle()
        } else {
            py.detach(settle)
        };
        if !kept {
            self.data = None;
        }
    }

    /// Values, keys and headers are kept elsewhere from now on.
    fn forget(&mut self) {
        self.columns.forget();
        self.data = None;
    }

    /// Bytes that are held.
    #[getter]
    fn held_bytes(&self, py: Python<'_>) -> usize {
        self.data.as_ref().map_or(0, |data| data.as_bytes(py).len()) + self.columns.held()
    }

    /// The keys of the records from number `first` to `stop`.
    fn keys<'py>(
        &self,
        py: Python<'py>,
        first: usize,
        stop: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let (data, stop) = (self.data(py), stop.min(self.columns.values.len()));
        let numbers = first.min(stop)..stop;
        PyList::new(
            py,
            numbers.map(|number| self.make(py, data, self.columns.key(number))),
        )
    }

    /// The timestamp of record `number`; none where it has none, or one that is negative or does not have 64 bits.
    #[pyo3(signature = (number, /))]
    fn timestamp(&self, number: usize) -> PyResult<Option<i64>> {
        let numbers = between(number, number.saturating_add(1), self.columns.times.len())?;
        Ok(self.columns.times_between(numbers).next().flatten())
    }

    /// The number behind the last of the values from number `first` to `stop` that have at most `size` bytes together, and how
    /// many these have.
    fn fitting(&self, first: usize, stop: usize, size: usize) -> PyResult<(usize, usize)> {
        let numbers = between(first, stop, self.columns.values.len())?;
        let sizes = self.columns.values[numbers].iter().map(columns::size_of);
        let (count, used) = within(sizes, size);
        Ok((first + count, used))
    }

    /// The messages of a kind from number `first` to `stop`, in lists of at most `most`.
    ///
    /// `next_offset` follows the last record of all. `types`: the kinds of times from -1 on. `headers` by number. Raises
    /// IndexError for numbers that there are not.
    #[allow(clippy::too_many_arguments)]
    fn messages(
        slf: Bound<'_, Self>,
        kind: Py<MessageKind>,
        first: usize,
        stop: usize,
        next_offset: i64,
        most: usize,
        types: Py<PyTuple>,
        headers: Py<PyDict>,
    ) -> PyResult<RecordLists> {
        let numbers = between(first, stop, slf.try_borrow()?.__len__())?;
        Ok(RecordLists {
            records: slf.unbind(),
            lists: Lists::new(kind),
            numbers,
            run: 0,
            next_offset,
            most,
            types,
            headers,
        })
    }

    /// The records from number `first` to `stop` as the buffers of Arrow columns: value; key and headers, if any of them has
    /// some; offset and next offset; time.
    ///
    /// `next_offset` follows the last record. A time that is negative, or has more than 64 bits, is null. Values have at most
    /// `most` bytes, and so have keys, and both 64-bit offsets if `wide`. Raises OverflowError for larger ones, IndexError
    /// for numbers that there are not.
    fn arrow<'py>(
        &self,
        py: Python<'py>,
        first: usize,
        stop: usize,
        next_offset: i64,
        most: usize,
        wide: bool,
    ) -> PyResult<ArrowBuffers<'py>> {
        let (columns, data) = (&self.columns, self.data(py));
        let numbers = between(first, stop, columns.values.len())?;
        let (count, width) = (numbers.len(), Width::new(wide, most));
        let value = |number: usize| columns.slice(data, columns.values[first + number]);
        let key = |number: usize| columns.slice(data, columns.key(first + number));
        let keyed = columns.has_keys(numbers.clone());
        let (values, keys, timed) = py.detach(|| {
            let keys = if keyed { count } else { 0 };
            let timed = columns.times_between(numbers.clone()).flatten().count();
            (Shape::of(count, value), Shape::of(keys, key), timed)
        });
        values.check("payloads", width)?;
        keys.check("keys", width)?;
        let bits = if timed < count { count.div_ceil(8) } else { 0 };
        let mut sizes = values.sizes(width).to_vec();
        sizes.extend([8 * count, 8 * count, bits, 8 * count]);
        if keyed {
            sizes.extend(keys.sizes(width));
        }
        let headers = self.arrow_headers(py, data, numbers.clone())?;
        let buffers = filled(py, &sizes, |mut out| {
            write_binary(&mut out[..3], width, count, value);
            columns.write_places(&mut out[3..5], numbers.clone(), next_offset);
            columns.write_times(&mut out[5..7], numbers);
            if keyed {
                write_binary(&mut out[7..], width, count, key);
            }
        })?;
        let mut buffers = buffers.into_iter();
        let mut next = || buffers.next().expect("a buffer for each size");
        let values = (next(), next(), next());
        let (offsets, nexts, times) = (next(), next(), (next(), next()));
        let keys = keyed.then(|| (next(), next(), next()));
        Ok((values, keys, headers, offsets, nexts, times))
    }

    /// Of each record that has headers its number and these: pairs of a name and a value, which may be None.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Vec<(u32, Bound<'py, PyTuple>)>> {
        let data = self.data(py);
        let mut found = Vec::with_capacity(self.columns.headers.len());
        for range in &self.columns.headers {
            let bytes = self.columns.slice(data, (range.start, range.size));
            let pairs = bytes
                .and_then(batch::headers)
                .ok_or_else(|| PyValueError::new_err("the headers are gone"))?;
            let pairs = pairs.into_iter().map(|(name, value)| {
                (
                    PyString::new(py, &String::from_utf8_lossy(name)),
                    value.map(|value| PyBytes::new(py, value)),
                )
            });
            found.push((range.number, PyTuple::new(py, pairs.collect::<Vec<_>>())?));
        }
        Ok(found)
    }

    /// Of each run: number of its first record, first offset and number of offsets, the offsets themselves as 64-bit
    /// numbers in this machine's order where they have gaps, kind of times, base time, times likewise, codec.
    #[getter]
    #[allow(clippy::type_complexity)]
    fn runs<'py>(
        &self,
        py: Python<'py>,
    ) -> Vec<(
        usize,
        i64,
        usize,
        Option<Bound<'py, PyBytes>>,
        i8,
        i64,
        Bound<'py, PyBytes>,
        u8,
    )> {
        let columns = &self.columns;
        let pack = |numbers: &[i64]| {
            let bytes: Vec<u8> = numbers
                .iter()
                .flat_map(|number| number.to_ne_bytes())
                .collect();
            PyBytes::new(py, &bytes)
        };
        let run = |run: &Run| {
            let Offsets {
                first,
                count,
                listed,
            } = run.offsets;
            (
                run.first,
                first,
                count,
                listed.map(|start| pack(&columns.listed[start..start + count])),
                run.kind,
                run.base_time,
                pack(&columns.times[run.first..run.first + count]),
                run.codec,
            )
        };
        columns.runs.iter().map(run).collect()
    }

    fn __len__(&self) -> usize {
        self.columns.values.len()
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        at: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (values, data) = (&self.columns.values, self.data(py));
        if let Ok(slice) = at.cast::<PySlice>() {
            let found = slice.indices(values.len() as isize)?;
            let numbers = (0..found.slicelength)
                .map(|turn| (found.start + turn as isize * found.step) as usize);
            let objects = numbers.map(|number| self.make(py, data, values[number]));
            return Ok(PyList::new(py, objects)?.into_any());
        }
        let number: isize = at.extract()?;
        let number = if number < 0 {
            number + values.len() as isize
        } else {
            number
        };
        if number < 0 || number as usize >= values.len() {
            return Err(PyIndexError::new_err("there is no such record"));
        }
        let found = self.make(py, data, values[number as usize]);
        Ok(found.into_pyobject(py)?)
    }

    fn __iter__(slf: Bound<'_, Self>) -> ValueIterator {
        ValueIterator {
            records: slf.unbind(),
            number: 0,
        }
    }
}

/// What `Records` reads of data, up to what is not for it: the records, the place behind them, what they cost beside
/// their values, and their leader epoch. They are settled if that is all of the data.
#[pyfunction]
#[pyo3(signature = (data, offset, aborted, limits, /))]
pub fn read_records(
    data: &Bound<'_, PyAny>,
    offset: i64,
    aborted: Vec<(i64, i64)>,
    limits: &Bound<'_, Limits>,
) -> PyResult<(Records, Place, usize, Option<i32>)> {
    let mut records = Records::new(data, offset, aborted)?;
    let place = records.read(data.py(), (0, 0, offset, 0), limits);
    if place.0 == records.columns.shared {
        records.settle(data.py());
    }
    let (bytes, epoch) = (records.columns.record_bytes, records.leader_epoch);
    Ok((records, place, bytes, epoch))
}

#[pyclass(module = "consumerd_native")]
pub struct ValueIterator {
    records: Py<Records>,
    number: usize,
}

#[pymethods]
impl ValueIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let records = self.records.bind(py).try_borrow()?;
        let Some(&range) = records.columns.values.get(self.number) else {
            return Ok(None);
        };
        self.number += 1;
        let found = records.make(py, records.data(py), range);
        Ok(Some(found.into_pyobject(py)?))
    }
}

/// Lists of messages, which are made as they are asked for.
#[pyclass(module = "consumerd_native")]
pub struct RecordLists {
    records: Py<Records>,
    lists: Lists,
    /// Of those that are left.
    numbers: Numbers<usize>,
    /// Number of the run behind the one of the message before.
    run: usize,
    next_offset: i64,
    most: usize,
    types: Py<PyTuple>,
    headers: Py<PyDict>,
}

#[pymethods]
impl RecordLists {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let records = self.records.bind(py).try_borrow()?;
        let (columns, data) = (&records.columns, records.data(py));
        let stop = self.numbers.end.min(self.numbers.start + self.most);
        if self.numbers.start == stop {
            return Ok(None);
        }
        let (types, headers) = (self.types.bind(py), self.headers.bind(py));
        let (any_headers, none) = (!headers.is_empty(), PyTuple::empty(py));
        let make = |range: Range| records.make(py, data, range).map(Bound::unbind);
        let (mut number_of_run, next_offset) = (self.run, self.next_offset);
        let mut numbers = self.numbers.start..stop;
        let found = self.lists.list(py, numbers.len(), || {
            let number = numbers.next().expect("as many as are asked for");
            let after = columns.runs[number_of_run..].partition_point(|run| run.first <= number);
            number_of_run += after;
            let run = &columns.runs[number_of_run - 1];
            let offset = run.offsets.at(&columns.listed, number - run.first);
            let behind = if number + 1 == columns.values.len() {
                next_offset
            } else {
                offset.wrapping_add(1)
            };
            let place = MessagePlace {
                offset,
                index: 0,
                next_offset: behind,
            };
            let own = if any_headers {
                headers.get_item(number)?
            } else {
                None
            };
            let keyed = Keyed {
                key: make(columns.key(number)),
                timestamp: i128::from(run.base_time) + i128::from(columns.times[number]),
                timestamp_type: types.get_item((run.kind + 1) as usize)?.unbind(),
                headers: own.unwrap_or_else(|| none.clone().into_any()).unbind(),
            };
            Ok(Fields {
                place,
                payload: make(columns.values[number]),
                keyed: Some(Box::new(keyed)),
            })
        })?;
        self.run = number_of_run;
        self.numbers.start = stop;
        Ok(Some(found))
    }
}
