//! Sound batches and messages that follow one another, of which nothing is kept (`consumerd.storage.segments.checking`).
use crc32c::crc32c;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::inflate::{Allowance, Codec};
use crate::limits::Limits;
use crate::message::be32;
use crate::records::batch::{walk_records, Header, CRC_END, HEADER};
use crate::records::old::{self, LOG_OVERHEAD};
use crate::records::reader::{codec_of, Opener};
use crate::records::with_opener;

const MAGIC: usize = 16;
const BATCH_MAGIC: u8 = 2;
const CODEC_MASK: u8 = 7;

/// Where they end, batches, compressed ones, control batches, records, the least offset that may follow, and the first
/// and the greatest leader epoch, -1 for none.
type Found = (usize, usize, usize, usize, usize, i64, i32, i32);

struct Checker<'a> {
    data: &'a [u8],
    limits: &'a Limits,
    shallow: bool,
    position: usize,
    batches: usize,
    compressed: usize,
    control: usize,
    records: usize,
    least: i64,
    first_epoch: i32,
    epoch: i32,
    expanded: usize,
}

impl Checker<'_> {
    /// Check what stands at the position and pass it; nothing if that is for the pure code.
    fn next(&mut self, opener: &mut Opener) -> Option<()> {
        let size = be32(self.data, self.position + 8)? as usize;
        let end = self.position + LOG_OVERHEAD + size;
        if size > self.limits.max_message_bytes || end > self.data.len() {
            return None;
        }
        let magic = *self.data.get(self.position + MAGIC)?;
        let last = if magic == BATCH_MAGIC {
            self.batch(end, opener)?
        } else {
            let message = old::read(self.data, self.position)?;
            if message.attributes & CODEC_MASK > 0 || message.offset < self.least {
                return None;
            }
            self.records += 1;
            message.offset
        };
        self.least = last.checked_add(1)?;
        self.batches += 1;
        self.position = end;
        Some(())
    }

    fn batch(&mut self, end: usize, opener: &mut Opener) -> Option<i64> {
        let start = self.position + HEADER;
        if end < start {
            return None;
        }
        let header = Header::read(self.data, self.position)?;
        let last = header
            .base_offset
            .checked_add(i64::from(header.last_offset_delta))?;
        let back = header.leader_epoch >= 0 && header.leader_epoch < self.epoch;
        if back
            || header.base_offset < self.least
            || header.last_offset_delta < 0
            || last == i64::MAX
            || crc32c(&self.data[self.position + CRC_END..end]) != header.crc
        {
            return None;
        }
        let codec = codec_of(header.attributes as u8)?;
        if header.control() {
            self.control += 1;
        } else {
            self.records += self.count(&header, codec, start, end, opener)?;
        }
        self.compressed += usize::from(codec != Codec::None);
        if header.leader_epoch >= 0 {
            self.epoch = header.leader_epoch;
            if self.first_epoch < 0 {
                self.first_epoch = self.epoch;
            }
        }
        Some(last)
    }

    /// How many records a batch has: by its header, or by themselves.
    fn count(
        &mut self,
        header: &Header,
        codec: Codec,
        start: usize,
        end: usize,
        opener: &mut Opener,
    ) -> Option<usize> {
        if self.shallow {
            let possible = 0..=i64::from(header.last_offset_delta) + 1;
            return (possible.contains(&i64::from(header.count))).then_some(header.count as usize);
        }
        let stored = &self.data[start..end];
        if codec == Codec::None {
            return walk_records(stored, header, |_| ());
        }
        if self.expanded >= self.limits.max_decompressed_bytes {
            return None;
        }
        let mut allowance = Allowance {
            bytes: self.limits.max_wrapper_bytes,
            pieces: usize::MAX,
        };
        let buffer = &mut opener.buffer;
        let size = (opener.inflater).open(codec, stored, buffer, &mut allowance, false)?;
        self.expanded += size;
        walk_records(&buffer[..size], header, |_| ())
    }
}

/// Check batches, and messages of magic 0 and 1 that are not compressed, from `position` on: whole, intact, of at least
/// the offset `least` and the leader epoch `epoch`, with readable records unless `shallow`.
#[pyfunction]
pub fn check_batches(
    py: Python<'_>,
    data: &Bound<'_, PyBytes>,
    position: usize,
    least: i64,
    epoch: i32,
    limits: &Bound<'_, Limits>,
    shallow: bool,
) -> Found {
    let mut checker = Checker {
        data: data.as_bytes(),
        limits: limits.get(),
        shallow,
        position,
        batches: 0,
        compressed: 0,
        control: 0,
        records: 0,
        least,
        first_epoch: -1,
        epoch,
        expanded: 0,
    };
    let found = py.detach(|| {
        with_opener(|opener| while checker.next(opener).is_some() {});
        checker
    });
    (
        found.position,
        found.batches,
        found.compressed,
        found.control,
        found.records,
        found.least,
        found.first_epoch,
        found.epoch,
    )
}
