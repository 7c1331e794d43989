//! The record data of a fetch response onto columns, as `consumerd.wire.v08.records.fetched` reads it.
//!
//! Stops in front of what is not whole, intact and possible, or has no room: the pure code judges that, and may go on
//! with the state that it is given.
use std::cmp::Reverse;

use crc32c::crc32c;

use crate::inflate::{Allowance, Codec, Inflater};
use crate::limits::Limits;
use crate::message::be32;
use crate::records::batch::{self, read_records, Header};
use crate::records::columns::{Columns, Mark, Offsets, Run};
use crate::records::old::{self, Message, LOG_OVERHEAD};

/// Where the magic stands in all formats.
const MAGIC: usize = 16;
const BATCH_MAGIC: u8 = 2;
const CODEC_MASK: u8 = 7;
/// What must follow a message that belongs to a row: the head of the next one.
const HEAD: usize = 16;
const LOG_APPEND_TIME: u8 = 0x08;
/// Kinds of timestamps (`TimestampType`).
const NO_TIME: i8 = -1;
const CREATE: i8 = 0;
const APPEND: i8 = 1;
/// A buffer that is larger is not kept for the next fetch.
pub const KEPT: usize = 1 << 22;

/// What is needed for decompressing.
pub struct Opener {
    pub inflater: Inflater,
    pub buffer: Vec<u8>,
}

/// How far a fetch has been read, beside its columns.
#[derive(Clone, Copy)]
pub struct State {
    pub position: usize,
    /// The least offset that may follow.
    pub least: i64,
    pub next_offset: i64,
    /// Bytes that came out of decompressing.
    pub expanded: usize,
    /// The leader's epoch of what was read; all of one set that have one have the same.
    pub leader_epoch: Option<i32>,
}

impl State {
    fn advance(&mut self, last: i64) {
        self.least = self.least.max(last + 1);
        self.next_offset = self.next_offset.max(self.least);
    }
}

/// Which transactions are aborted (`consumerd.wire.v08.records.fetched.AbortedTransactions`).
#[derive(Default)]
pub struct Aborted {
    /// First offset and producer id, the next one at the end.
    coming: Vec<(i64, i64)>,
    active: Vec<i64>,
}

impl Aborted {
    pub fn new(transactions: Vec<(i64, i64)>) -> Self {
        let mut coming: Vec<_> = transactions
            .into_iter()
            .map(|(producer, first)| (first, producer))
            .collect();
        coming.sort_unstable_by_key(|one| Reverse(one.0));
        Aborted {
            coming,
            active: Vec::new(),
        }
    }

    pub fn any(&self) -> bool {
        !(self.coming.is_empty() && self.active.is_empty())
    }

    pub fn covers(&mut self, producer: i64, last: i64) -> bool {
        while let Some(&(_, begun)) = self.coming.last().filter(|(first, _)| *first <= last) {
            self.coming.pop();
            if !self.active.contains(&begun) {
                self.active.push(begun);
            }
        }
        self.active.contains(&producer)
    }

    pub fn end(&mut self, producer: i64) {
        self.active.retain(|active| *active != producer);
    }
}

pub struct Reader<'a> {
    pub data: &'a [u8],
    /// The offset that was asked for.
    pub offset: i64,
    pub limits: &'a Limits,
    pub columns: &'a mut Columns,
    pub aborted: &'a mut Aborted,
    pub state: State,
}

impl Reader<'_> {
    /// Read on, up to what is for the pure code or the end.
    pub fn read(&mut self, opener: &mut Opener) {
        while let Some(magic) = self.whole() {
            let epoch = self.leader_epoch(magic);
            if epoch.is_some()
                && self
                    .state
                    .leader_epoch
                    .is_some_and(|read| Some(read) != epoch)
            {
                break;
            }
            let taken = match magic {
                BATCH_MAGIC => self.batch(opener),
                0 | 1 => self.message(magic, opener),
                _ => None,
            };
            if taken.is_none() {
                break;
            }
            if self.state.next_offset > self.offset {
                self.state.leader_epoch = epoch.or(self.state.leader_epoch);
            }
        }
    }

    /// The epoch of what stands at the position, which is there as a whole; the older formats have none.
    fn leader_epoch(&self, magic: u8) -> Option<i32> {
        if magic != BATCH_MAGIC {
            return None;
        }
        let epoch = be32(self.data, self.state.position + LOG_OVERHEAD)? as i32;
        (epoch >= 0).then_some(epoch)
    }

    /// The magic of what stands at the position, if that is there as a whole and of a possible size.
    fn whole(&self) -> Option<u8> {
        let size = be32(self.data, self.state.position + 8)? as usize;
        let end = self.state.position + LOG_OVERHEAD + size;
        if size < old::MIN_SIZE[0] || size > self.limits.max_message_bytes.min(i32::MAX as usize) {
            return None;
        }
        (end <= self.data.len()).then(|| self.data[self.state.position + MAGIC])
    }

    fn message(&mut self, magic: u8, opener: &mut Opener) -> Option<()> {
        let attributes = self.data[self.state.position + MAGIC + 1];
        if attributes & CODEC_MASK == 0 && self.row(magic, attributes)? {
            return Some(());
        }
        let message = old::read(self.data, self.state.position)?;
        if message.offset < self.state.least || message.offset == i64::MAX {
            return None;
        }
        if message.attributes & CODEC_MASK == 0 {
            let mark = self.columns.mark();
            let mut offsets = Offsets::default();
            offsets.push(&mut self.columns.listed, message.offset);
            (self.columns).push(0, message.key, message.value, message.timestamp);
            let stored = message.end - self.state.position;
            self.close(mark, offsets, kind_of(&message), 0, 0, stored);
        } else if message.offset >= self.offset {
            self.wrapper(&message, opener)?;
        }
        self.state.advance(message.offset);
        self.state.position = message.end;
        Some(())
    }

    /// Take the row of plain messages of one magic with these attributes; whether there was one.
    ///
    /// Nothing if its first offset is not possible.
    fn row(&mut self, magic: u8, attributes: u8) -> Option<bool> {
        let (mark, start) = (self.columns.mark(), self.state.position);
        let (mut position, mut last) = (start, None);
        let mut offsets = Offsets::default();
        while let Some(message) = old::read(self.data, position) {
            if message.magic != magic
                || message.attributes != attributes
                || message.value.is_none()
                || last.is_some_and(|last| message.offset <= last)
                || message.end + HEAD > self.data.len()
            {
                break;
            }
            offsets.push(&mut self.columns.listed, message.offset);
            (self.columns).push(0, message.key, message.value, message.timestamp);
            position = message.end;
            last = Some(message.offset);
        }
        if offsets.count == 0 {
            return Some(false);
        }
        if offsets.first < self.state.least || last == Some(i64::MAX) {
            self.columns.rewind(mark);
            return None;
        }
        self.state.position = position;
        let kind = kind_of_old(magic, attributes);
        self.close(mark, offsets, kind, 0, 0, position - start);
        Some(true)
    }

    fn wrapper(&mut self, wrapper: &Message, opener: &mut Opener) -> Option<()> {
        let (start, end) = wrapper.value?;
        let codec = codec_of(wrapper.attributes).filter(|codec| *codec != Codec::Zstd)?;
        let mark = self.columns.mark();
        let size = self.open(codec, start, end, opener)?;
        let found = self.unwrap(wrapper, &opener.buffer[..size], mark);
        if found.is_none() {
            self.columns.rewind(mark);
            return None;
        }
        self.state.expanded += size;
        let number = wrapper.attributes & CODEC_MASK;
        self.close(mark, found?, kind_of(wrapper), 0, number, size);
        Some(())
    }

    fn unwrap(&mut self, wrapper: &Message, set: &[u8], mark: Mark) -> Option<Offsets> {
        let base = self.columns.keep(set);
        let appended = wrapper.magic == 1 && wrapper.attributes & LOG_APPEND_TIME > 0;
        let (mut position, mut least) = (0, i64::MIN);
        let mut offsets = Offsets::default();
        while position < set.len() {
            let message = old::read(set, position)?;
            if message.attributes & CODEC_MASK > 0 || message.offset < least {
                return None;
            }
            least = message.offset.checked_add(1)?;
            offsets.push(&mut self.columns.listed, message.offset);
            let time = if appended {
                wrapper.timestamp
            } else {
                message.timestamp
            };
            self.columns.push(base, message.key, message.value, time);
            position = message.end;
        }
        if offsets.count == 0 {
            return Some(offsets);
        }
        if wrapper.magic == 1 && wrapper.offset != 0 {
            let shift = wrapper
                .offset
                .checked_sub(offsets.last(&self.columns.listed))?;
            offsets.first = offsets.first.checked_add(shift)?;
            for offset in &mut self.columns.listed[mark.listed()..] {
                *offset = offset.checked_add(shift)?;
            }
        }
        let (first, last) = (
            offsets.at(&self.columns.listed, 0),
            offsets.last(&self.columns.listed),
        );
        (first >= self.state.least
            && last < i64::MAX
            && !(wrapper.offset > 0 && last > wrapper.offset))
            .then_some(offsets)
    }

    fn batch(&mut self, opener: &mut Opener) -> Option<()> {
        let position = self.state.position;
        let end = position + LOG_OVERHEAD + be32(self.data, position + 8)? as usize;
        if end - position < batch::HEADER {
            return None;
        }
        let header = Header::read(self.data, position)?;
        if crc32c(&self.data[position + batch::CRC_END..end]) != header.crc
            || header.last_offset_delta < 0
        {
            return None;
        }
        let last = header
            .base_offset
            .checked_add(i64::from(header.last_offset_delta))?;
        if header.base_offset < self.state.least || last == i64::MAX {
            return None;
        }
        if header.control() {
            if self.aborted.any() {
                return None;
            }
        } else if last >= self.offset
            && !(header.transactional() && self.aborted.covers(header.producer_id, last))
        {
            self.records(&header, position + batch::HEADER, end, opener)?;
        }
        self.state.advance(last);
        self.state.position = end;
        Some(())
    }

    fn records(
        &mut self,
        header: &Header,
        start: usize,
        end: usize,
        opener: &mut Opener,
    ) -> Option<()> {
        let mark = self.columns.mark();
        let codec = codec_of(header.attributes as u8)?;
        let mut stored = end - start;
        let found = if codec == Codec::None {
            read_records(self.columns, &self.data[start..end], start, header)
        } else {
            stored = self.open(codec, start, end, opener)?;
            let base = self.columns.keep(&opener.buffer[..stored]);
            read_records(self.columns, &opener.buffer[..stored], base, header)
        };
        let Some(offsets) = found else {
            self.columns.rewind(mark);
            return None;
        };
        let (kind, base_time) = if header.log_append_time() {
            (APPEND, header.max_timestamp)
        } else {
            (CREATE, header.base_timestamp)
        };
        if codec != Codec::None {
            self.state.expanded += stored;
        }
        let number = header.attributes as u8 & CODEC_MASK;
        self.close(mark, offsets, kind, base_time, number, stored);
        Some(())
    }

    /// Decompress part of the data into the buffer, if there is room for it; returns its size.
    fn open(
        &mut self,
        codec: Codec,
        start: usize,
        end: usize,
        opener: &mut Opener,
    ) -> Option<usize> {
        let limits = self.limits;
        let used = self.columns.shared + self.columns.arena.len();
        if self.columns.memory() >= limits.max_batch_bytes
            || self.state.expanded >= limits.max_decompressed_bytes
            || used + limits.max_wrapper_bytes > u32::MAX as usize
        {
            return None;
        }
        let mut allowance = Allowance {
            bytes: limits.max_wrapper_bytes,
            pieces: usize::MAX,
        };
        let payload = &self.data[start..end];
        (opener.inflater).open(codec, payload, &mut opener.buffer, &mut allowance, false)
    }

    fn close(
        &mut self,
        mark: Mark,
        offsets: Offsets,
        kind: i8,
        base_time: i64,
        codec: u8,
        stored: usize,
    ) {
        if offsets.count > 0 {
            self.state.advance(offsets.last(&self.columns.listed));
        }
        let run = Run {
            first: mark.first(),
            offsets,
            kind,
            base_time,
            codec,
        };
        self.columns.close(mark, run, self.offset, stored);
    }
}

/// Of the attributes of a message or batch; nothing for a number that no codec has.
pub fn codec_of(attributes: u8) -> Option<Codec> {
    Some(match attributes & CODEC_MASK {
        0 => Codec::None,
        1 => Codec::Gzip,
        2 => Codec::Snappy,
        3 => Codec::Lz4,
        4 => Codec::Zstd,
        _ => return None,
    })
}

fn kind_of(message: &Message) -> i8 {
    kind_of_old(message.magic, message.attributes)
}

fn kind_of_old(magic: u8, attributes: u8) -> i8 {
    match (magic, attributes & LOG_APPEND_TIME > 0) {
        (0, _) => NO_TIME,
        (_, false) => CREATE,
        (_, true) => APPEND,
    }
}
