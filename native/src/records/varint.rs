//! Signed varints of record batches, with the bounds of `consumerd.wire.v08.records.varint`.

/// The number at `position`, which moves behind it; nothing at the end of the data, or for more than 32 bits.
#[inline]
pub fn int32(data: &[u8], position: &mut usize) -> Option<i32> {
    let raw = raw::<5, 0x0F>(data, position)? as u32;
    Some((raw >> 1) as i32 ^ -((raw & 1) as i32))
}

/// As `int32`, of up to 64 bits.
#[inline]
pub fn int64(data: &[u8], position: &mut usize) -> Option<i64> {
    let raw = raw::<10, 0x01>(data, position)?;
    Some((raw >> 1) as i64 ^ -((raw & 1) as i64))
}

/// Of at most `LONGEST` bytes, the last of which is at most `HIGHEST`.
#[inline]
fn raw<const LONGEST: usize, const HIGHEST: u8>(data: &[u8], position: &mut usize) -> Option<u64> {
    let first = *data.get(*position)?;
    *position += 1;
    if first < 0x80 {
        return Some(u64::from(first));
    }
    let mut value = u64::from(first & 0x7F);
    for number in 1..LONGEST {
        let byte = *data.get(*position)?;
        *position += 1;
        if number == LONGEST - 1 && byte > HIGHEST {
            return None;
        }
        value |= u64::from(byte & 0x7F) << (7 * number);
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// The bits of a number as they are written: seven in a byte, the lowest first.
#[inline]
pub fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

/// How many bytes a number takes.
#[inline]
pub fn size_of(number: i64) -> usize {
    let bits = 64 - (zigzag(number) | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}
