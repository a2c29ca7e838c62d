//! Floats as integers in the same order.

/// Maps a float to an integer that compares as the float does (IEEE 754 total order).
pub(crate) fn order_key(x: f32) -> u32 {
    let bits = x.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// The inverse of [`order_key`].
pub(crate) fn from_order_key(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & !(1 << 31) } else { !key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_as_floats_do() {
        let ascending =
            [f32::NEG_INFINITY, -1.5, -f32::MIN_POSITIVE, -0.0, 0.0, f32::MIN_POSITIVE, 2.0, f32::INFINITY];
        for pair in ascending.windows(2) {
            assert!(order_key(pair[0]) < order_key(pair[1]), "{pair:?}");
        }
        for x in ascending {
            assert_eq!(from_order_key(order_key(x)).to_bits(), x.to_bits());
        }
    }
}
