//! The code of an index, and queries prepared for it.

use crate::bits::{BitCoder, BitQuery, Scaling};
use crate::trained_codes::{Codebook, Table};

/// How vectors of an index are encoded.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "an index has one")]
pub enum Coder {
    /// Some bits of each dimension after a random rotation.
    Bits(BitCoder),
    /// A product quantiser that an older version trained.
    Trained(Codebook),
}

impl Coder {
    /// Components of a vector.
    pub fn dim(&self) -> usize {
        match self {
            Coder::Bits(coder) => coder.layout().dim(),
            Coder::Trained(codebook) => codebook.dim,
        }
    }

    /// Bytes of one code.
    pub fn code_bytes(&self) -> usize {
        match self {
            Coder::Bits(coder) => coder.layout().code_bytes(),
            Coder::Trained(codebook) => codebook.code_bytes(),
        }
    }

    /// The quantiser that was trained; `None` of bits.
    pub fn trained(&self) -> Option<&Codebook> {
        match self {
            Coder::Bits(_) => None,
            Coder::Trained(codebook) => Some(codebook),
        }
    }

    /// Whether a distance by a code is that of the vector, in the mean. That of a trained code has its squared error
    /// on top.
    pub fn is_unbiased(&self) -> bool {
        matches!(self, Coder::Bits(coder) if coder.scaling() == Scaling::Unbiased)
    }

    /// `out = R x`; both have `dim` components.
    pub fn rotate(&self, x: &[f32], out: &mut [f32]) {
        match self {
            Coder::Bits(coder) => {
                out.copy_from_slice(x);
                coder.rotate(out);
            }
            Coder::Trained(codebook) => codebook.rotate(x, out),
        }
    }

    /// Encodes a rotated vector. `code` has [`code_bytes`](Self::code_bytes) bytes; `scratch` has `dim` floats.
    pub fn encode_rotated(&self, y: &[f32], scratch: &mut [f32], code: &mut [u8]) {
        match self {
            Coder::Bits(coder) => {
                let parts = y.iter().zip(coder.centre());
                scratch.iter_mut().zip(parts).for_each(|(out, (x, c))| *out = x - c);
                coder.encode(scratch, code);
            }
            Coder::Trained(codebook) => {
                codebook.encode_rotated(y, scratch, code);
            }
        }
    }

    /// Decodes a code into rotated space.
    pub fn decode_rotated(&self, code: &[u8], out: &mut [f32]) {
        match self {
            Coder::Bits(coder) => {
                coder.decode(code, out);
                out.iter_mut().zip(coder.centre()).for_each(|(x, c)| *x += c);
            }
            Coder::Trained(codebook) => codebook.decode_rotated(code, out),
        }
    }
}

/// A query prepared for the codes of an index.
#[derive(Clone, Debug, Default)]
pub struct CodeQuery {
    bits: BitQuery,
    table: Table,
    is_trained: bool,
}

impl CodeQuery {
    /// Prepares for `query` (`dim` floats, not rotated). `scratch` is scratch.
    pub fn set(&mut self, coder: &Coder, query: &[f32], scratch: &mut Vec<f32>) {
        match coder {
            Coder::Bits(coder) => self.bits.set(coder, query, scratch),
            Coder::Trained(codebook) => self.table.set(codebook, query, scratch),
        }
        self.is_trained = coder.trained().is_some();
    }

    /// The query for codes of bits, for a scorer on another device; `None` of a trained code.
    pub fn bits(&self) -> Option<&BitQuery> {
        (!self.is_trained).then_some(&self.bits)
    }

    /// Bytes of a code.
    pub fn code_bytes(&self) -> usize {
        if self.is_trained { self.table.code_bytes() } else { self.bits.code_bytes() }
    }

    /// The key of the distance of one code; `u32::MAX` when `code` is shorter than a code. Keys are in the order of
    /// distances.
    pub fn distance(&self, code: &[u8]) -> u32 {
        if self.is_trained { self.table.distance(code) } else { self.bits.distance(code) }
    }

    /// The keys of the codes numbered `ids` in `codes` (`code_bytes` each), in their order. An id beyond the end of
    /// `codes` gets
    /// `u32::MAX`. `out` is cleared first.
    pub fn distances(&self, codes: &[u8], ids: &[u32], out: &mut Vec<u32>) {
        if self.is_trained {
            self.table.distances(codes, ids, out);
        } else {
            self.bits.distances(codes, ids, out);
        }
    }

    /// Converts a key to a distance of the metric (squared l2, or minus the inner product).
    pub fn to_float(&self, key: u32) -> f32 {
        if self.is_trained { self.table.to_float(key) } else { self.bits.to_float(key) }
    }

    /// Upper bound of the error of [`to_float`](Self::to_float) of a code: of a trained one against the sum of the
    /// terms before they became integers, of bits as [`BitQuery::error_max`] says.
    pub fn error_max(&self, code: &[u8]) -> f32 {
        if self.is_trained { self.table.error_max() } else { self.bits.error_max(code) }
    }

    /// Standard error of the same where it is known: of codes of bits, which a random rotation made alike.
    pub fn error_deviation(&self, code: &[u8]) -> Option<f32> {
        (!self.is_trained).then(|| self.bits.error_deviation(code))
    }

    /// Upper bound of the relative rounding of the scale of codes of bits; `None` of a trained code.
    pub fn scale_rounding(&self) -> Option<f32> {
        (!self.is_trained).then(|| self.bits.scale_rounding())
    }

    /// The usual length of what a code of bits of a residual stands for; `None` of a trained code.
    pub fn code_length(&self, code: &[u8]) -> Option<f32> {
        (!self.is_trained).then(|| self.bits.code_length(code))
    }
}
