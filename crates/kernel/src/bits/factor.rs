//! Factors of a code: floats of 16 or 32 bits. The scale is positive, the norm may have any sign.

/// The bits of a float that 16 bits keep: 8 of its exponent and 8 of its mantissa, without a sign.
const DROPPED: u32 = 15;

/// Rounds a factor to the nearest that has so many bytes. What is not positive becomes 0, what is too large infinite.
pub(super) fn round(factor: f32, bytes: usize) -> f32 {
    if bytes == 2 { from_short(to_short(factor)) } else { factor.max(0.0) }
}

/// Writes a factor.
pub(super) fn write(factor: f32, out: &mut [u8]) {
    match out {
        [a, b] => [*a, *b] = to_short(factor).to_le_bytes(),
        [a, b, c, d] => [*a, *b, *c, *d] = factor.max(0.0).to_le_bytes(),
        _ => {}
    }
}

/// Writes a factor of any sign: in 16 bits, as its upper half (bfloat16).
pub(super) fn write_signed(factor: f32, out: &mut [u8]) {
    let factor = if factor.is_nan() { 0.0 } else { factor };
    match out {
        [a, b] => {
            let bits = factor.to_bits();
            // A carry into the exponent is the right rounding; beyond the largest it is infinity.
            let rounded = if factor.is_finite() { bits + (1 << 15) } else { bits };
            [*a, *b] = ((rounded >> 16) as u16).to_le_bytes();
        }
        [a, b, c, d] => [*a, *b, *c, *d] = factor.to_le_bytes(),
        _ => {}
    }
}

/// Writes a factor that is not negative where [`write_signed`] does, rounded up.
pub(super) fn write_up(factor: f32, out: &mut [u8]) {
    let factor = if factor.is_nan() { f32::INFINITY } else { factor };
    match out {
        // A carry into the exponent is the next larger number; beyond the largest it is infinity.
        [a, b] => [*a, *b] = (((factor.to_bits() + 0xffff) >> 16) as u16).to_le_bytes(),
        [a, b, c, d] => [*a, *b, *c, *d] = factor.to_le_bytes(),
        _ => {}
    }
}

/// Writes a factor that is not negative where [`write_signed`] does, rounded down.
pub(super) fn write_down(factor: f32, out: &mut [u8]) {
    let factor = if factor.is_nan() { 0.0 } else { factor };
    match out {
        [a, b] => [*a, *b] = ((factor.to_bits() >> 16) as u16).to_le_bytes(),
        [a, b, c, d] => [*a, *b, *c, *d] = factor.to_le_bytes(),
        _ => {}
    }
}

/// The bits of the float that 16 bits of any sign stand for.
#[inline(always)]
pub(super) fn signed_bits(short: u16) -> u32 {
    u32::from(short) << 16
}

/// Reads a factor of 2 or 4 bytes.
pub(super) fn read(bytes: &[u8]) -> f32 {
    match *bytes {
        [a, b] => from_short(u16::from_le_bytes([a, b])),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        _ => 0.0,
    }
}

/// Reads a factor that [`write_signed`] or [`write_up`] wrote.
pub(super) fn read_signed(bytes: &[u8]) -> f32 {
    match *bytes {
        [a, b] => f32::from_bits(signed_bits(u16::from_le_bytes([a, b]))),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        _ => 0.0,
    }
}

fn to_short(factor: f32) -> u16 {
    let bits = factor.max(0.0).to_bits();
    // A carry into the exponent is the right rounding; beyond the largest it is infinity.
    ((bits + (1 << (DROPPED - 1))) >> DROPPED) as u16
}

/// The bits of the float that 16 bits stand for.
#[inline(always)]
pub(super) fn short_bits(short: u16) -> u32 {
    u32::from(short) << DROPPED
}

fn from_short(short: u16) -> f32 {
    f32::from_bits(short_bits(short))
}
