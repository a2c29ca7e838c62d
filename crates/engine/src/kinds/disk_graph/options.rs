//! Options of a `disk-graph`.

use stratann_params::Group;
pub use stratann_params::build::GraphOptions as Options;
use stratann_params::choices::CodePlace;
pub use stratann_params::search::GraphSwitches as Switches;
use stratann_storage::{Error, Result};

use crate::codebook::check_code_bytes;
use crate::record::{CODE_KIND, Record, Recorded, recorded};

/// Most bytes of codes that are as fine as pays, without a budget; with one, an eighth of it.
const FINE_CODES_BYTES: u64 = 64 << 20;

impl Recorded for Options {
    fn check(&self, dim: usize) -> Result<()> {
        self.check_ranges()?;
        if self.build_list < self.degree {
            return Err(Error::bad_input(format!(
                "--build-list is {}; use {} (the degree) to 10000",
                self.build_list, self.degree
            )));
        }
        check_code_bytes(self.code_bytes, dim)
    }

    /// Codes have four bits a dimension where these take little memory: a search then compares less.
    fn choose_for(&mut self, rows: u64, dim: usize, ram_budget: Option<u64>) {
        let most_bytes = ram_budget.map_or(FINE_CODES_BYTES, |budget| FINE_CODES_BYTES.min(budget / 8));
        self.choose_codes(rows, dim, most_bytes);
    }

    fn record(&self, dim: usize) -> Record {
        let mut all = recorded(self);
        // Absent stands for the choice of the build, and for RAM, as in indexes from before there was a choice.
        all.retain(|name, value| !value.is_null() && (*name != "codes" || self.codes == CodePlace::Disk));
        all.insert("code_bytes", self.code_bytes(dim).into());
        all.insert("code_kind", CODE_KIND.into());
        all
    }
}
