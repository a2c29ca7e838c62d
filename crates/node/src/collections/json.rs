//! Content of points as JSON, as all that print or send them have it. Ids are JSON by themselves.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use stratann_kernel::DType;
use stratann_kernel::element::widen;

/// A payload that was stored, which is JSON.
#[derive(Clone, Copy, Debug)]
pub struct PayloadJson<'a>(pub &'a [u8]);

impl Serialize for PayloadJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let json: &RawValue = serde_json::from_slice(self.0).map_err(serde::ser::Error::custom)?;
        json.serialize(serializer)
    }
}

/// Components of a vector, as numbers that are read back bit for bit.
#[derive(Clone, Copy, Debug)]
pub struct VectorJson<'a> {
    /// The components, little-endian.
    pub bytes: &'a [u8],
    /// Their type.
    pub dtype: DType,
}

impl Serialize for VectorJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.bytes;
        match self.dtype {
            DType::F32 | DType::F16 => {
                let mut floats = vec![0.0; bytes.len() / self.dtype.size()];
                widen(self.dtype, bytes, &mut floats);
                serializer.collect_seq(floats)
            }
            DType::U8 => serializer.collect_seq(bytes),
            DType::I8 => serializer.collect_seq(bytes.iter().map(|&byte| byte as i8)),
        }
    }
}
