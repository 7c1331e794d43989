//! Where the values, keys and headers of records are, and their offsets and times; no object for any of them.
//!
//! Positions below `shared` are in the data, from there on in the arena, to which decompressed sets and batches are
//! copied as a whole. Who reads a message or batch appends to the columns and closes the run, or rewinds.

use std::ops::Range as Numbers;

use crate::arrow::{put_i64, set_bit};

/// A length that no value has: there is none.
const NULL: u32 = u32::MAX;
/// What a record, key, header and run cost beside their bytes (`consumerd.wire.v08.records.record_set`), and a payload
/// (`consumerd.wire.batch.OVERHEAD_PER_MESSAGE`).
const PER_RECORD: usize = 24;
const PER_RUN: usize = 300;
const PER_HEADER: usize = 200;
const PER_KEY: usize = 33;
const PER_MESSAGE: usize = 48;

/// Start and length.
pub type Range = (u32, u32);

/// The bytes of a value; 0 for null.
pub fn size_of(range: &Range) -> usize {
    if range.1 == NULL {
        0
    } else {
        range.1 as usize
    }
}

/// Headers of one record: its number, where they are with their count in front, and how many.
#[derive(Clone, Copy)]
pub struct HeaderRange {
    pub number: u32,
    pub start: u32,
    pub size: u32,
    pub count: u32,
}

/// The offsets of a run: one after the other from `first` on, or listed from a place in `Columns::listed` on.
#[derive(Clone, Copy, Default)]
pub struct Offsets {
    pub first: i64,
    pub count: usize,
    pub listed: Option<usize>,
}

impl Offsets {
    #[inline]
    pub fn push(&mut self, listed: &mut Vec<i64>, offset: i64) {
        if self.listed.is_some() {
            listed.push(offset);
        } else if self.count == 0 {
            self.first = offset;
        } else if self.first.wrapping_add(self.count as i64) != offset {
            self.listed = Some(listed.len());
            listed.extend((0..self.count as i64).map(|number| self.first + number));
            listed.push(offset);
        }
        self.count += 1;
    }

    pub fn at(&self, listed: &[i64], number: usize) -> i64 {
        self.listed
            .map_or(self.first.wrapping_add(number as i64), |start| {
                listed[start + number]
            })
    }

    pub fn last(&self, listed: &[i64]) -> i64 {
        self.at(listed, self.count.saturating_sub(1))
    }
}

/// Consecutive records from one source (`consumerd.wire.v08.records.record_set.RecordRun`).
pub struct Run {
    pub first: usize,
    pub offsets: Offsets,
    pub kind: i8,
    pub base_time: i64,
    pub codec: u8,
}

#[derive(Clone, Copy)]
pub struct Mark {
    first: usize,
    arena: usize,
    listed: usize,
    keyed: usize,
    header_count: usize,
}

impl Mark {
    /// The number of the next record.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Where the next offset would be listed.
    pub fn listed(&self) -> usize {
        self.listed
    }
}

#[derive(Default)]
pub struct Columns {
    pub shared: usize,
    pub arena: Vec<u8>,
    pub values: Vec<Range>,
    /// Up to the last record that has a key.
    pub keys: Vec<Range>,
    /// Counted from the base time of the run.
    pub times: Vec<i64>,
    pub headers: Vec<HeaderRange>,
    pub listed: Vec<i64>,
    pub runs: Vec<Run>,
    /// What the records cost without `PER_MESSAGE`.
    pub record_bytes: usize,
    keyed: usize,
    header_count: usize,
}

impl Columns {
    /// No records as yet of data of `shared` bytes.
    pub fn new(shared: usize) -> Self {
        Columns {
            shared,
            ..Columns::default()
        }
    }

    pub fn mark(&self) -> Mark {
        Mark {
            first: self.values.len(),
            arena: self.arena.len(),
            listed: self.listed.len(),
            keyed: self.keyed,
            header_count: self.header_count,
        }
    }

    pub fn rewind(&mut self, mark: Mark) {
        self.values.truncate(mark.first);
        self.keys.truncate(mark.first);
        self.times.truncate(mark.first);
        while (self.headers.last()).is_some_and(|found| found.number as usize >= mark.first) {
            self.headers.pop();
        }
        self.listed.truncate(mark.listed);
        self.arena.truncate(mark.arena);
        self.keyed = mark.keyed;
        self.header_count = mark.header_count;
    }

    /// One record; positions are those of `base` and after.
    #[inline]
    pub fn push(
        &mut self,
        base: usize,
        key: Option<(usize, usize)>,
        value: Option<(usize, usize)>,
        time: i64,
    ) {
        let place = |found: Option<(usize, usize)>| {
            found.map_or((0, NULL), |(start, end)| {
                ((base + start) as u32, (end - start) as u32)
            })
        };
        if key.is_some() {
            self.keys.resize(self.values.len(), (0, NULL));
            self.keys.push(place(key));
            self.keyed += 1;
        }
        self.values.push(place(value));
        self.times.push(time);
    }

    /// Headers of the record that is pushed next.
    pub fn push_headers(&mut self, start: usize, size: usize, count: usize) {
        self.headers.push(HeaderRange {
            number: self.values.len() as u32,
            start: start as u32,
            size: size as u32,
            count: count as u32,
        });
        self.header_count += count;
    }

    /// Take a set or batch out of its buffer; returns the position where it begins.
    pub fn keep(&mut self, set: &[u8]) -> usize {
        let base = self.shared + self.arena.len();
        self.arena.extend_from_slice(set);
        base
    }

    pub fn memory(&self) -> usize {
        self.record_bytes + PER_MESSAGE * self.values.len()
    }

    /// The run of what came since `mark` is whole: take it up without what is below `least`.
    ///
    /// `stored`: its bytes in the data.
    pub fn close(&mut self, mark: Mark, mut run: Run, least: i64, stored: usize) {
        let offsets = &mut run.offsets;
        let below = if offsets.listed.is_none() {
            least
                .saturating_sub(offsets.first)
                .clamp(0, offsets.count as i64) as usize
        } else {
            (0..offsets.count)
                .take_while(|&number| offsets.at(&self.listed, number) < least)
                .count()
        };
        if below == offsets.count {
            self.rewind(mark);
            return;
        }
        if below > 0 {
            self.drop(mark, below);
            match &mut offsets.listed {
                Some(start) => *start += below,
                None => offsets.first += below as i64,
            }
            offsets.count -= below;
        }
        self.record_bytes += stored + PER_RUN + PER_RECORD * offsets.count;
        self.record_bytes += PER_KEY * (self.keyed - mark.keyed);
        self.record_bytes += PER_HEADER * (self.header_count - mark.header_count);
        self.runs.push(run);
    }

    fn drop(&mut self, mark: Mark, count: usize) {
        let (first, stop) = (mark.first, mark.first + count);
        self.values.drain(first..stop);
        self.times.drain(first..stop);
        let known = first.min(self.keys.len())..stop.min(self.keys.len());
        self.keyed -= self.keys[known.clone()]
            .iter()
            .filter(|key| key.1 != NULL)
            .count();
        self.keys.drain(known);
        let (mut headers, from) = (0, first as u32);
        self.headers.retain_mut(|found| {
            if found.number < from {
                return true;
            }
            if found.number < stop as u32 {
                headers += found.count as usize;
                return false;
            }
            found.number -= count as u32;
            true
        });
        self.header_count -= headers;
    }

    pub fn key(&self, number: usize) -> Range {
        self.keys.get(number).copied().unwrap_or((0, NULL))
    }

    /// Whether any of the records with these numbers has a key.
    pub fn has_keys(&self, numbers: Numbers<usize>) -> bool {
        let stop = numbers.end.min(self.keys.len());
        let known = self.keys.get(numbers.start..stop).unwrap_or_default();
        known.iter().any(|key| key.1 != NULL)
    }

    /// The runs that have records with these numbers, with those of them that they have.
    fn runs_between(
        &self,
        numbers: Numbers<usize>,
    ) -> impl Iterator<Item = (&Run, Numbers<usize>)> {
        let at = self.runs.partition_point(|run| run.first <= numbers.start);
        let end = numbers.end;
        self.runs[at.saturating_sub(1)..]
            .iter()
            .take_while(move |run| run.first < end)
            .map(move |run| {
                let stop = (run.first + run.offsets.count).min(end);
                (run, run.first.max(numbers.start)..stop)
            })
            .filter(|(_, found)| !found.is_empty())
    }

    /// The times of the records with these numbers; none where one is negative, or does not have 64 bits.
    pub fn times_between(&self, numbers: Numbers<usize>) -> impl Iterator<Item = Option<i64>> + '_ {
        self.runs_between(numbers).flat_map(|(run, found)| {
            let times = self.times[found].iter();
            times.map(|time| run.base_time.checked_add(*time).filter(|time| *time >= 0))
        })
    }

    /// Write the validity, if it has a buffer, and the times of the records with these numbers.
    pub fn write_times(&self, out: &mut [&mut [u8]], numbers: Numbers<usize>) {
        let [validity, times] = out else {
            unreachable!("times have two buffers")
        };
        let mut times = times.chunks_exact_mut(8);
        for (number, time) in self.times_between(numbers).enumerate() {
            put_i64(&mut times, time.unwrap_or(0));
            if time.is_some() && !validity.is_empty() {
                set_bit(validity, number);
            }
        }
    }

    /// Write offset and next offset of the records with these numbers; `next_offset` follows the last record of all.
    pub fn write_places(&self, out: &mut [&mut [u8]], numbers: Numbers<usize>, next_offset: i64) {
        let [offsets, nexts] = out else {
            unreachable!("a place has two columns")
        };
        let (mut offsets, mut nexts) = (offsets.chunks_exact_mut(8), nexts.chunks_exact_mut(8));
        let last = self.values.len() - usize::from(!self.values.is_empty());
        for (run, found) in self.runs_between(numbers) {
            for number in found {
                let offset = run.offsets.at(&self.listed, number - run.first);
                put_i64(&mut offsets, offset);
                let next = if number == last {
                    next_offset
                } else {
                    offset.wrapping_add(1)
                };
                put_i64(&mut nexts, next);
            }
        }
    }

    pub fn slice<'a>(&'a self, data: &'a [u8], range: Range) -> Option<&'a [u8]> {
        let (start, size) = (range.0 as usize, range.1 as usize);
        if range.1 == NULL {
            None
        } else if size == 0 {
            Some(&[]) // wherever that stood
        } else if start < self.shared {
            Some(&data[start..start + size])
        } else {
            Some(&self.arena[start - self.shared..start - self.shared + size])
        }
    }

    /// Bytes that are held beside the data.
    pub fn held(&self) -> usize {
        self.arena.capacity()
            + 8 * (self.values.capacity() + self.keys.capacity())
            + 8 * (self.times.capacity() + self.listed.capacity())
            + std::mem::size_of::<HeaderRange>() * self.headers.capacity()
            + std::mem::size_of::<Run>() * self.runs.capacity()
    }

    fn shrink(&mut self) {
        self.arena.shrink_to_fit();
        self.values.shrink_to_fit();
        self.keys.shrink_to_fit();
        self.times.shrink_to_fit();
        self.listed.shrink_to_fit();
        self.headers.shrink_to_fit();
        self.runs.shrink_to_fit();
    }

    /// Copy what lies in the data, for which `whole` bytes are held, if that would be more than the records may take.
    ///
    /// Whether the data is still needed.
    pub fn settle(&mut self, data: &[u8], whole: usize) -> bool {
        self.shrink();
        let begin =
            |range: &Range| range.1 != NULL && range.1 > 0 && (range.0 as usize) < self.shared;
        let needed = self.values.iter().any(begin)
            || self.keys.iter().any(begin)
            || self
                .headers
                .iter()
                .any(|found| (found.start as usize) < self.shared);
        if !needed {
            return false;
        }
        if whole + self.held() <= self.memory() {
            return true;
        }
        let mut arena = Vec::new();
        let moved = |range: &mut Range, arena: &mut Vec<u8>| {
            if let Some(found) = self.slice(data, *range) {
                *range = (arena.len() as u32, range.1);
                arena.extend_from_slice(found);
            }
        };
        let mut values = self.values.clone();
        values.iter_mut().for_each(|range| moved(range, &mut arena));
        let mut keys = self.keys.clone();
        keys.iter_mut().for_each(|range| moved(range, &mut arena));
        let mut headers = self.headers.clone();
        for found in &mut headers {
            let mut range = (found.start, found.size);
            moved(&mut range, &mut arena);
            found.start = range.0;
        }
        arena.shrink_to_fit();
        (self.values, self.keys, self.headers, self.arena) = (values, keys, headers, arena);
        self.shared = 0;
        false
    }

    /// The bytes are not needed any more: offsets and times stay.
    pub fn forget(&mut self) {
        self.arena = Vec::new();
        self.values = Vec::new();
        self.keys = Vec::new();
        self.headers = Vec::new();
    }
}
