//! What the vectors of a collection are.
//!
//! | offset | bytes | content, little-endian |
//! |---|---|---|
//! | 0 | 1 | version of the layout, 1 |
//! | 1 | 1 | metric |
//! | 2 | 1 | element type |
//! | 3 | 4 | dimensions |
//! | 7 | | name of the kind of its larger segments, nothing where it is chosen |

mod names;

use stratann_core::delta::Shape;
use stratann_engine::dataset::check_row;
use stratann_kernel::{DType, Metric};

use stratann_params::IndexKind;

use super::error::{Error, Result};
pub(crate) use names::VectorsOf;
pub(super) use names::record;
pub use names::{NamedSpec, Specs, VECTOR_NAMES_MAX};

/// Most components of a vector, as many as an index takes.
pub const DIM_MAX: usize = 4096;
/// Longest name of a collection, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

const VERSION: u8 = 1;

/// Shape of the vectors of a collection, or of a name of vectors, and how they are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Components of a vector.
    pub dim: usize,
    /// How vectors are compared.
    pub metric: Metric,
    /// Type of a component.
    pub dtype: DType,
    /// Kind of its larger segments; `None` leaves the choice to each build.
    pub kind: Option<IndexKind>,
}

impl Spec {
    /// Bytes of a vector.
    pub fn row_bytes(&self) -> usize {
        self.dim * self.dtype.size()
    }

    /// The same as lists of codes know it.
    pub(super) fn shape(&self) -> Shape {
        Shape { dim: self.dim, dtype: self.dtype, metric: self.metric }
    }

    pub(super) fn check(&self) -> Result<()> {
        match self.dim {
            1..=DIM_MAX => Ok(()),
            dim => Err(Error::bad_input(format!("vectors of {dim} dimensions; give 1 to {DIM_MAX}"))),
        }
    }

    /// Number of vectors in `vectors`, each of which errors call a `noun`.
    ///
    /// # Errors
    /// `BadInput` for none, for a part of a vector, and for NaN or infinity, with its row and component.
    pub(super) fn check_vectors(&self, vectors: &[u8], noun: &str) -> Result<usize> {
        let row_bytes = self.row_bytes();
        if vectors.is_empty() {
            return Err(Error::bad_input("there is no vector; give one or more"));
        }
        if !vectors.len().is_multiple_of(row_bytes) {
            return Err(Error::bad_input(format!(
                "{} bytes of vectors; give whole vectors of {} dimensions of {}, {row_bytes} bytes each",
                vectors.len(),
                self.dim,
                self.dtype.name()
            )));
        }
        if let Some(at) = self.first_not_finite(vectors) {
            return Err(Error::bad_input(format!(
                "component {} of {noun} {} is NaN or infinite; give finite numbers",
                at % self.dim,
                at / self.dim
            )));
        }
        let bad = |row: &[u8]| check_row(self.dtype, self.metric, row);
        match vectors.chunks_exact(row_bytes).zip(0u64..).find_map(|(row, at)| Some((at, bad(row)?))) {
            Some((at, bad)) => {
                Err(Error::bad_input(format!("{noun} {at}: {bad}; correct it or leave it out")))
            }
            None => Ok(vectors.len() / row_bytes),
        }
    }

    /// Position of the first component that is NaN or infinite.
    pub(super) fn first_not_finite(&self, vectors: &[u8]) -> Option<usize> {
        match self.dtype {
            DType::F32 => {
                let mut bits = vectors.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
                bits.position(|bits| bits & 0x7f80_0000 == 0x7f80_0000)
            }
            DType::F16 => {
                let mut bits = vectors.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
                bits.position(|bits| bits & 0x7c00 == 0x7c00)
            }
            DType::U8 | DType::I8 => None,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.metric as u8, self.dtype as u8];
        bytes.extend((self.dim as u32).to_le_bytes());
        bytes.extend(self.kind.map_or("", IndexKind::name).as_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Spec> {
        let ([VERSION, metric, dtype], rest) = bytes.split_first_chunk::<3>()? else { return None };
        let (dim, kind) = rest.split_first_chunk::<4>()?;
        let kind = std::str::from_utf8(kind).ok()?;
        let spec = Spec {
            dim: u32::from_le_bytes(*dim) as usize,
            metric: Metric::ALL.into_iter().find(|known| *known as u8 == *metric)?,
            dtype: DType::ALL.into_iter().find(|known| *known as u8 == *dtype)?,
            kind: match kind {
                "" => None,
                name => Some(IndexKind::parse(name)?),
            },
        };
        spec.check().ok().map(|()| spec)
    }
}

/// Checks the name of a collection.
pub(super) fn check_name(name: &str) -> Result<()> {
    let wrong = match name {
        "" => "is empty",
        _ if name.len() > NAME_BYTES_MAX => "is too long",
        _ if name.chars().any(char::is_control) => "has control characters",
        _ if name.contains('/') => "has a slash",
        _ => return Ok(()),
    };
    Err(Error::bad_input(format!(
        "the name of a collection {wrong}; give 1 to {NAME_BYTES_MAX} bytes without control characters and /"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_decoded_was_encoded() {
        for metric in Metric::ALL {
            for dtype in DType::ALL {
                let spec = Spec { dim: 77, metric, dtype, kind: None };
                let bytes = spec.encode();
                assert_eq!(Spec::decode(&bytes), Some(spec));
                (0..bytes.len()).for_each(|length| assert_eq!(Spec::decode(&bytes[..length]), None));
                assert_eq!(Spec::decode(&[&bytes[..], &[0]].concat()), None);
            }
        }
        assert_eq!(Spec::decode(&[1, 0, 0, 0, 0, 0, 0]), None, "no dimension");
        assert_eq!(Spec::decode(&[2, 0, 0, 1, 0, 0, 0]), None, "a newer layout");
        assert_eq!(Spec::decode(&[1, 9, 0, 1, 0, 0, 0]), None, "an unknown metric");
    }

    #[test]
    fn names_have_limits() {
        for name in ["a", "é b", &"x".repeat(255)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", "a/b", "a\n", "\u{7f}", "\0", &"x".repeat(256)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn numbers_that_are_none_are_found() {
        let spec = |dtype| Spec { dim: 2, metric: Metric::L2, dtype, kind: None };
        let floats = |x: f32| [1.0, 1e18, f32::MIN_POSITIVE / 2.0, x].map(f32::to_le_bytes).concat();
        assert_eq!(spec(DType::F32).check_vectors(&floats(-0.0), "vector"), Ok(2));
        for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = spec(DType::F32).check_vectors(&floats(x), "vector").unwrap_err();
            assert!(error.message.contains("component 1 of vector 1"), "{error}");
        }
        let error = spec(DType::F32).check_vectors(&floats(f32::MAX), "vector").unwrap_err();
        assert!(error.message.contains("vector 1: its squared norm exceeds"), "{error}");
        let cosine = Spec { metric: Metric::Cosine, ..spec(DType::U8) };
        assert!(
            cosine
                .check_vectors(&[0, 1, 0, 0], "vector")
                .unwrap_err()
                .message
                .contains("vector 1: a zero vector")
        );
        for (bits, is_finite) in [(0x7bff_u16, true), (0x7c00, false), (0xfc00, false), (0x7e01, false)] {
            let bytes = [0, bits].map(u16::to_le_bytes).concat();
            assert_eq!(spec(DType::F16).check_vectors(&bytes, "vector").is_ok(), is_finite);
        }
        assert!(
            spec(DType::U8).check_vectors(&[255; 3], "vector").is_err()
                && spec(DType::U8).check_vectors(&[], "vector").is_err()
        );
    }
}
