//! Options of a `disk-graph`.

use stratann_params::Group;
use stratann_params::build::GraphOptions;
use stratann_params::choices::CodePlace;
use stratann_storage::{Error, Result};

use crate::codebook::check_code_bytes;
use crate::record::{Record, recorded};

/// Checks the values for vectors of `dim` components.
pub(crate) fn check(own: &GraphOptions, dim: usize) -> Result<()> {
    own.check_ranges()?;
    if own.build_list < own.degree {
        return Err(Error::bad_input(format!(
            "--build-list is {}; use {} (the degree) to 10000",
            own.build_list, own.degree
        )));
    }
    check_code_bytes(own.code_bytes, dim)
}

/// The options that the content of an index depends on, as its manifest records them.
pub(crate) fn record(own: &GraphOptions, dim: usize) -> Record {
    let mut all = recorded(own);
    // Absent stands for the choice of the build, and for RAM, as in indexes from before there was a choice.
    all.retain(|name, value| !value.is_null() && (*name != "codes" || own.codes == CodePlace::Disk));
    all.insert("code_bytes", own.code_bytes(dim).into());
    all.insert("code_kind", format!("{:?}", own.code_kind).to_lowercase().into());
    all
}
