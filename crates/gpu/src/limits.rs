//! What a device takes: codes that the kernels can score, and limits of its jobs.

use crate::bits::PLANES_MAX;
use crate::{DeviceOptions, Error, Failure, Query};
use stratann_kernel::bits::Layout;
use stratann_kernel::coder::Coder;
use stratann_kernel::trained_codes::Codebook;

/// Largest float that terms may reach; above it, sums of floats could overflow and order NaNs by their bits.
const FLOAT_MAX: f64 = 1e37;

/// Checks that the kernels can score codes of this coder; returns the number of codes.
pub(crate) fn check_codes(coder: &Coder, codes: &[u8]) -> Result<u32, Error> {
    let refuse = |why: &str| Error::Codebook(why.to_string());
    match coder {
        Coder::Trained(codebook) => check_codebook(codebook).map_err(refuse)?,
        Coder::Bits(coder) if coder.layout().planes().len() > PLANES_MAX => {
            return Err(refuse("their bits have more planes than the kernels know"));
        }
        Coder::Bits(_) => {}
    }
    let size = coder.code_bytes();
    if !codes.len().is_multiple_of(size) {
        return Err(refuse(&format!(
            "{} bytes are not a whole number of codes of {size} bytes",
            codes.len()
        )));
    }
    let Some(count) = u32::try_from(codes.len() / size).ok().filter(|&count| count < u32::MAX) else {
        return Err(refuse("there are more than 2^32 - 2 of them"));
    };
    Ok(count)
}

/// Checks a codebook, or says why it cannot be used.
fn check_codebook(codebook: &Codebook) -> Result<(), &'static str> {
    if !codebook.is_consistent() {
        return Err("the lengths in the codebook do not agree");
    }
    let correction =
        f64::from(codebook.correction_low).abs() + 255.0 * f64::from(codebook.correction_step).abs();
    if correction > FLOAT_MAX || Magnitudes::new(codebook).terms(0.0) > FLOAT_MAX {
        return Err("its floats are so large that distances could overflow");
    }
    Ok(())
}

/// Largest absolute values in a codebook.
#[derive(Clone, Copy, Debug)]
struct Magnitudes {
    dim: f64,
    // By how much a rotation can enlarge the largest component.
    rotation: f64,
    centroids: f64,
}

impl Magnitudes {
    fn new(codebook: &Codebook) -> Magnitudes {
        let largest = |floats: &[f32]| floats.iter().fold(0f64, |m, &x| m.max(f64::from(x).abs()));
        let dim = codebook.dim as f64;
        let rotation = if codebook.rotation.is_empty() { 1.0 } else { dim * largest(&codebook.rotation) };
        Magnitudes { dim, rotation, centroids: largest(&codebook.coarse).max(largest(&codebook.centroids)) }
    }

    /// Upper bound of the sum of all terms of a query whose largest component is `query`.
    fn terms(&self, query: f64) -> f64 {
        100.0 * self.dim * (self.rotation * query + self.centroids).powi(2)
    }
}

/// Limits that a job is checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) codes_count: u32,
    pub(crate) ids_max: u32,
    pub(crate) keep_max: u32,
    pub(crate) rows_bytes_max: u32,
    pub(crate) dim: usize,
    query: QueryLimit,
}

/// Queries that a device takes.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "a device has one")]
enum QueryLimit {
    /// Floats that are not too large.
    Floats(Magnitudes),
    /// Those that are prepared for codes of these bits.
    Bits(Layout),
}

impl Limits {
    /// Limits of a device with `codes_count` codes.
    pub(crate) fn new(options: &DeviceOptions, coder: &Coder, codes_count: u32) -> Limits {
        let query = match coder {
            Coder::Trained(codebook) => QueryLimit::Floats(Magnitudes::new(codebook)),
            Coder::Bits(coder) => QueryLimit::Bits(*coder.layout()),
        };
        Limits {
            codes_count,
            ids_max: options.ids_max,
            keep_max: options.keep_max,
            rows_bytes_max: options.rows_bytes_max,
            dim: coder.dim(),
            query,
        }
    }

    /// Checks that a query is one for these codes.
    pub(crate) fn check_query(&self, query: &Query) -> Result<(), Failure> {
        match (query, &self.query) {
            (Query::Floats(floats), QueryLimit::Floats(magnitudes)) => self.check_floats(floats, magnitudes),
            (Query::Bits(query), QueryLimit::Bits(layout)) if query.layout() == layout => Ok(()),
            _ => Err(Failure::Query { what: "it is prepared for other codes".to_string() }),
        }
    }

    /// Checks a query whose look-up table is to be built. There is none for codes of bits.
    pub(crate) fn check_table(&self, query: &[f32]) -> Result<(), Failure> {
        match &self.query {
            QueryLimit::Floats(magnitudes) => self.check_floats(query, magnitudes),
            QueryLimit::Bits(_) => {
                Err(Failure::Query { what: "codes of bits have no look-up table".to_string() })
            }
        }
    }

    /// Checks a query's dimension, and that no float of its table can overflow. Without overflow there is no NaN, and
    /// only NaNs differ between a CPU and a GPU.
    fn check_floats(&self, query: &[f32], magnitudes: &Magnitudes) -> Result<(), Failure> {
        if query.len() != self.dim {
            let what = format!("it has {} components, and the codebook {}", query.len(), self.dim);
            return Err(Failure::Query { what });
        }
        let largest =
            query.iter().fold(0f64, |m, &x| if x.is_finite() { m.max(f64::from(x).abs()) } else { f64::MAX });
        if magnitudes.terms(largest) > FLOAT_MAX {
            return Err(Failure::Query {
                what: "its distances could exceed the range of floats".to_string(),
            });
        }
        Ok(())
    }
}
