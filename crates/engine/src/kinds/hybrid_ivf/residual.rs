//! Codes of residuals to centroids.

use stratann_core::format::inverted_list::Member;
use stratann_kernel::Metric;
use stratann_kernel::coder::Coder;
use stratann_kernel::distance::dot_f32;

/// Upper bound of the rounding error of a radius, relative to it and to the vector.
const ROUNDING: f32 = 2e-6;

pub(crate) fn subtract(row: &mut [f32], centroid: &[f32]) {
    row.iter_mut().zip(centroid).for_each(|(x, c)| *x -= c);
}

/// Encodes vectors one by one, with the numbers of their list codes.
pub(crate) struct Encoder<'a> {
    coder: &'a Coder,
    metric: Metric,
    residual: Vec<f32>,
    rotated: Vec<f32>,
    decoded: Vec<f32>,
    centroid: Vec<f32>,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(coder: &'a Coder, metric: Metric) -> Encoder<'a> {
        let zeros = vec![0f32; coder.dim()];
        Encoder {
            coder,
            metric,
            residual: zeros.clone(),
            rotated: zeros.clone(),
            decoded: zeros.clone(),
            centroid: zeros,
        }
    }

    /// Sets the centroid of all following residuals.
    pub(crate) fn set_centroid(&mut self, centroid: &[f32]) {
        self.coder.rotate(centroid, &mut self.centroid);
    }

    /// Encodes `vector` as it is encoded for codes; `code` has the bytes of one. `centroid` is that of
    /// [`Encoder::set_centroid`].
    pub(crate) fn encode(&mut self, vector: &[f32], centroid: &[f32], code: &mut [u8]) -> Member {
        self.residual.copy_from_slice(vector);
        subtract(&mut self.residual, centroid);
        let square = |x: &[f32]| dot_f32(x, bytemuck::cast_slice(x));
        let centroid_distance = square(&self.residual).sqrt();
        self.coder.rotate(&self.residual, &mut self.rotated);
        self.coder.encode_rotated(&self.rotated, &mut self.residual, code);
        self.coder.decode_rotated(code, &mut self.decoded);
        let parts = self.rotated.iter().zip(&self.decoded);
        let lost = parts.map(|(a, b)| f64::from((a - b) * (a - b))).sum::<f64>() as f32;
        let term = match self.metric {
            Metric::Ip => 0.0,
            Metric::L2 | Metric::Cosine => {
                square(&self.decoded) + 2.0 * dot_f32(&self.centroid, bytemuck::cast_slice(&self.decoded))
            }
        };
        // The rotation is orthonormal up to rounding, which is included.
        let radius = lost.sqrt() * (1.0 + ROUNDING) + ROUNDING * (centroid_distance + square(vector).sqrt());
        Member { term, radius, centroid_distance }
    }
}
