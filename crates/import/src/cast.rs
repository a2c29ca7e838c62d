//! Components of vectors become the type of a collection, or are refused.
//!
//! Floats are rounded to the nearest float of the type. NaN, infinities, and what becomes infinite are refused. Whole
//! numbers stay exact: one that the type does not have is refused, and so is a fraction for a type of whole numbers.

use half::f16;
use stratann_kernel::DType;

/// Beyond this, a whole number may have been rounded on its way to a float.
const WHOLE_MAX: f64 = (1u64 << 53) as f64;

/// A component as it is stored in a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Component {
    /// Its value.
    pub value: f64,
    /// Whether its type has whole numbers alone.
    pub is_whole: bool,
}

/// Appends a component to a vector of a type, little-endian.
///
/// # Errors
/// Why it is refused, and what to do.
pub fn append(dtype: DType, component: Component, vector: &mut Vec<u8>) -> Result<(), String> {
    let Component { value, is_whole } = component;
    if value.is_nan() {
        return Err("is NaN; correct the vector or leave the row out".into());
    }
    if value.is_infinite() {
        return Err("is infinite; correct the vector or leave the row out".into());
    }
    let lossy = || format!("is {value}, which {} does not have exactly; convert the column", dtype.name());
    let overflows = || format!("is {value}, which {} does not reach; scale the vectors", dtype.name());
    if is_whole && value.abs() >= WHOLE_MAX {
        return Err(lossy());
    }
    match dtype {
        DType::F32 => {
            let own = value as f32;
            if own.is_infinite() {
                return Err(overflows());
            }
            if is_whole && f64::from(own) != value {
                return Err(lossy());
            }
            vector.extend(own.to_le_bytes());
        }
        DType::F16 => {
            let own = f16::from_f64(value);
            if own.is_infinite() {
                return Err(overflows());
            }
            if is_whole && own.to_f64() != value {
                return Err(lossy());
            }
            vector.extend(own.to_le_bytes());
        }
        DType::U8 => vector.push(whole(value, 0.0, 255.0).ok_or_else(lossy)? as u8),
        DType::I8 => vector.push(whole(value, -128.0, 127.0).ok_or_else(lossy)? as i8 as u8),
    }
    Ok(())
}

/// A whole number within limits.
fn whole(value: f64, least: f64, most: f64) -> Option<f64> {
    (value.fract() == 0.0 && (least..=most).contains(&value)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cast(dtype: DType, value: f64, is_whole: bool) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        append(dtype, Component { value, is_whole }, &mut out).map(|()| out)
    }

    #[test]
    fn nothing_wraps_or_overflows() {
        for (dtype, value, is_whole, is_fine) in [
            (DType::F32, f64::MAX, false, false),
            (DType::F32, f64::NAN, false, false),
            (DType::F32, f64::NEG_INFINITY, false, false),
            (DType::F32, f64::from(f32::MAX), false, true),
            (DType::F32, 1e-300, false, true),
            (DType::F32, 16_777_216.0, true, true),
            (DType::F32, 16_777_217.0, true, false),
            (DType::F32, 1.8e19, true, false),
            (DType::F16, 65504.0, false, true),
            (DType::F16, 65520.0, false, false),
            (DType::F16, 2049.0, true, false),
            (DType::U8, 255.0, true, true),
            (DType::U8, 256.0, true, false),
            (DType::U8, -1.0, true, false),
            (DType::U8, 0.5, false, false),
            (DType::I8, -128.0, false, true),
            (DType::I8, 128.0, true, false),
        ] {
            assert_eq!(cast(dtype, value, is_whole).is_ok(), is_fine, "{dtype:?} {value}");
        }
        assert_eq!(cast(DType::I8, -1.0, true).unwrap(), [255]);
    }

    proptest! {
        #[test]
        fn floats_come_back_bit_for_bit(bits in any::<u32>(), half in any::<u16>()) {
            let (float, half) = (f32::from_bits(bits), f16::from_bits(half));
            if float.is_finite() {
                prop_assert_eq!(cast(DType::F32, float.into(), false).unwrap(), float.to_le_bytes());
            }
            if half.is_finite() {
                prop_assert_eq!(cast(DType::F16, half.to_f64(), false).unwrap(), half.to_le_bytes());
            }
        }
    }
}
