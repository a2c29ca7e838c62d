//! What a device takes: codes that the kernels can score, and limits of its jobs.

use crate::bits::PLANES_MAX;
use crate::{CodesOptions, Error, Failure};
use stratann_kernel::bits::{BitCoder, BitQuery, Layout};

/// Checks that the kernels can score codes of this coder; returns the number of codes.
pub(crate) fn check_codes(coder: &BitCoder, codes: &[u8]) -> Result<u32, Error> {
    let refuse = |why: &str| Error::Codes(why.to_string());
    if coder.layout().planes().len() > PLANES_MAX {
        return Err(refuse("their bits have more planes than the kernels know"));
    }
    let size = coder.layout().code_bytes();
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

/// Limits that a job is checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) codes_count: u32,
    pub(crate) ids_max: u32,
    pub(crate) keep_max: u32,
    pub(crate) rows_bytes_max: u32,
    pub(crate) dim: usize,
    layout: Layout,
}

impl Limits {
    /// Limits of jobs of `codes_count` codes.
    pub(crate) fn new(options: &CodesOptions, coder: &BitCoder, codes_count: u32) -> Limits {
        Limits {
            codes_count,
            ids_max: options.ids_max,
            keep_max: options.keep_max,
            rows_bytes_max: options.rows_bytes_max,
            dim: coder.layout().dim(),
            layout: *coder.layout(),
        }
    }

    /// Checks that a query is one for these codes.
    pub(crate) fn check_query(&self, query: &BitQuery) -> Result<(), Failure> {
        if *query.layout() == self.layout {
            return Ok(());
        }
        Err(Failure::Query { what: "it is prepared for other codes".to_string() })
    }
}
