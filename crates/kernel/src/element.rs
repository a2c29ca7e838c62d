//! Element types and metrics, independent of each other.

use half::f16;

/// The type of one vector component, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    /// IEEE 754 binary32.
    F32 = 0,
    /// IEEE 754 binary16.
    F16 = 1,
    /// Unsigned byte.
    U8 = 2,
    /// Signed byte.
    I8 = 3,
}

impl DType {
    /// Every element type, in the order of its number.
    pub const ALL: [DType; 4] = [DType::F32, DType::F16, DType::U8, DType::I8];

    /// Bytes of one component.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 => 2,
            DType::U8 | DType::I8 => 1,
        }
    }

    /// True for the types that can hold NaN or infinity.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16)
    }

    /// The name used in manifests and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::U8 => "u8",
            DType::I8 => "i8",
        }
    }

    /// The inverse of [`DType::name`].
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }
}

/// Distance between two vectors. Smaller is always closer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Metric {
    /// Squared Euclidean distance.
    L2 = 0,
    /// Minus the inner product.
    Ip = 1,
    /// One minus the cosine of the angle.
    Cosine = 2,
}

impl Metric {
    /// Every metric, in the order of its number.
    pub const ALL: [Metric; 3] = [Metric::L2, Metric::Ip, Metric::Cosine];

    /// The name used in manifests and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Metric::L2 => "l2",
            Metric::Ip => "ip",
            Metric::Cosine => "cosine",
        }
    }

    /// The inverse of [`Metric::name`].
    pub fn from_name(name: &str) -> Option<Metric> {
        Metric::ALL.into_iter().find(|m| m.name() == name)
    }
}

/// Converts a row to f16, little-endian bytes. Values beyond the range become the largest f16, so that distances stay
/// finite.
pub fn narrow_f16(row: &[f32]) -> impl Iterator<Item = u8> + '_ {
    let most = f16::MAX.to_f32();
    row.iter().flat_map(move |x| f16::from_f32(x.clamp(-most, most)).to_le_bytes())
}

/// Widens a row of `dtype` to f32, component by component.
///
/// `row` holds `out.len()` components as little-endian bytes; a shorter row leaves the rest of `out` untouched.
pub fn widen(dtype: DType, row: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            for (o, c) in out.iter_mut().zip(row.chunks_exact(4)) {
                *o = f32::from_le_bytes([c[0], c[1], c[2], c[3]]);
            }
        }
        DType::F16 => crate::distance::widen_f16(row, out),
        DType::U8 => out.iter_mut().zip(row).for_each(|(o, &c)| *o = f32::from(c)),
        DType::I8 => out.iter_mut().zip(row).for_each(|(o, &c)| *o = f32::from(c as i8)),
    }
}
