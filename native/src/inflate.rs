//! Payloads of compressed messages: a gzip member, snappy blocks in xerial or no framing, an lz4 frame, zstd frames.
//!
//! What is unusual (several gzip members, header fields that no producer writes, damage, more than a limit) is not
//! handled: the caller gets nothing, and the pure code opens the payload or says why it cannot be opened.
use libdeflater::Decompressor;
use memchr::memmem::Finder;

use crate::lz4::unlz4;
use crate::message::be32;
use crate::zstandard::most_of;

/// How a payload is compressed; 0.7 has the first three.
#[derive(Clone, Copy, PartialEq)]
pub enum Codec {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

const MEMBER: &[u8] = b"\x1f\x8b\x08";
/// Magic, method, flags, time, extra flags, system; CRC-32 and size.
const GZIP_HEADER: usize = 10;
const GZIP_TRAILER: usize = 8;
/// Deflate makes no more out of a byte.
const DEFLATE_MAX_RATIO: usize = 1032;
const XERIAL_MAGIC: &[u8] = b"\x82SNAPPY\x00";
/// With the two versions.
const XERIAL_HEADER: usize = 16;
/// No element of the snappy format makes more than 64 bytes out of 3.
const SNAPPY_MAX_RATIO: usize = 22;
/// As many blocks are never looked at for their sizes; of more, each has so many bytes on average.
const FREE_PIECES: usize = 1024;
const PIECE_BYTES: usize = 32;

/// What one outer message, with all that is nested in it, may still cost.
pub struct Allowance {
    pub bytes: usize,
    pub pieces: usize,
}

/// Of how many blocks, at most, `size` bytes of compressed data may be.
pub fn most_pieces(size: usize) -> usize {
    FREE_PIECES + size / PIECE_BYTES
}

/// Decompresses; kept from one message to the next.
pub struct Inflater {
    gzip: Decompressor,
    snappy: snap::raw::Decoder,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    member: Finder<'static>,
}

impl Inflater {
    pub fn new() -> Self {
        Inflater {
            gzip: Decompressor::new(),
            snappy: snap::raw::Decoder::new(),
            zstd: None,
            member: Finder::new(MEMBER),
        }
    }

    /// Decompress `payload` to the start of `out`, which only ever grows; returns the number of bytes.
    ///
    /// Spends of `allowance`; `counted`: pieces, too.
    pub fn open(
        &mut self,
        codec: Codec,
        payload: &[u8],
        out: &mut Vec<u8>,
        allowance: &mut Allowance,
        counted: bool,
    ) -> Option<usize> {
        match codec {
            Codec::None => None,
            Codec::Gzip => self.gunzip(payload, out, allowance, counted),
            Codec::Snappy => self.unxerial(payload, out, allowance, counted),
            Codec::Lz4 => spend(allowance, unlz4(payload, out, allowance.bytes)),
            Codec::Zstd => spend(allowance, self.unzstd(payload, out, allowance.bytes)),
        }
    }

    fn gunzip(
        &mut self,
        data: &[u8],
        out: &mut Vec<u8>,
        allowance: &mut Allowance,
        counted: bool,
    ) -> Option<usize> {
        if data.len() < GZIP_HEADER + GZIP_TRAILER || !data.starts_with(MEMBER) || data[3] != 0 {
            return None;
        }
        // The trailer is where this says if there is but one member, and nothing after it: its own check tells.
        let claimed = u32::from_le_bytes(data[data.len() - 4..].try_into().ok()?) as usize;
        if claimed > allowance.bytes || claimed > DEFLATE_MAX_RATIO * data.len() {
            return None;
        }
        if self.member.find(&data[GZIP_HEADER..]).is_some() {
            return None;
        }
        if counted {
            allowance.pieces = allowance.pieces.checked_sub(1)?;
        }
        grow(out, claimed);
        let size = self.gzip.gzip_decompress(data, &mut out[..claimed]).ok()?;
        allowance.bytes -= size;
        Some(size)
    }

    /// Only if all that the frames could hold is within `limit`.
    fn unzstd(&mut self, data: &[u8], out: &mut Vec<u8>, limit: usize) -> Option<usize> {
        let most = most_of(data).filter(|most| *most <= limit)?;
        if self.zstd.is_none() {
            self.zstd = zstd::bulk::Decompressor::new().ok();
        }
        grow(out, most);
        self.zstd
            .as_mut()?
            .decompress_to_buffer(data, &mut out[..most])
            .ok()
    }

    fn unxerial(
        &mut self,
        data: &[u8],
        out: &mut Vec<u8>,
        allowance: &mut Allowance,
        counted: bool,
    ) -> Option<usize> {
        if !(data.starts_with(XERIAL_MAGIC) && data.len() >= XERIAL_HEADER) {
            return self.unsnap(data, out, 0, allowance, counted);
        }
        let (mut position, mut size) = (XERIAL_HEADER, 0);
        let mut blocks = most_pieces(data.len());
        while position + 4 <= data.len() {
            let length = be32(data, position)?;
            if length > i32::MAX as u32
                && data[position..].starts_with(XERIAL_MAGIC)
                && position + XERIAL_HEADER <= data.len()
            {
                position += XERIAL_HEADER;
                continue;
            }
            position += 4;
            let block = data.get(position..position.checked_add(length as usize)?)?;
            blocks = blocks.checked_sub(1)?;
            size += self.unsnap(block, out, size, allowance, counted)?;
            position += block.len();
        }
        Some(size)
    }

    /// One raw block, to `out` from `at` on.
    fn unsnap(
        &mut self,
        block: &[u8],
        out: &mut Vec<u8>,
        at: usize,
        allowance: &mut Allowance,
        counted: bool,
    ) -> Option<usize> {
        if counted {
            allowance.pieces = allowance.pieces.checked_sub(1)?;
        }
        if block.is_empty() {
            return None;
        }
        let claimed = snap::raw::decompress_len(block).ok()?;
        if claimed > allowance.bytes || claimed > SNAPPY_MAX_RATIO * block.len() {
            return None;
        }
        grow(out, at + claimed);
        let size = self
            .snappy
            .decompress(block, &mut out[at..at + claimed])
            .ok()?;
        allowance.bytes -= size;
        Some(size)
    }
}

fn spend(allowance: &mut Allowance, size: Option<usize>) -> Option<usize> {
    allowance.bytes = allowance.bytes.checked_sub(size?)?;
    size
}

pub fn grow(out: &mut Vec<u8>, size: usize) {
    if out.len() < size {
        out.resize(size, 0);
    }
}
