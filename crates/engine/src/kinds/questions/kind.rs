//! The questions about an index that is not open.

use std::path::Path;

use stratann_core::place::Placement;
use stratann_core::query::Params;
use stratann_storage::Result;

use crate::curve::Point;
use crate::exec::BatchOptions;
use crate::findings::Verification;
use crate::kinds::answers::PlannedQuery;
use crate::kinds::blocks;
use crate::kinds::options::Switches;
use crate::manifest::Manifest;
use crate::units::UnitRanges;

/// Answers of a kind, by the manifest and the files of an index. Those of blocks of whole vectors, and of a kind that
/// lacks a capability, are here already.
pub(crate) trait Kind: Sync {
    /// Returns the parameters for k results with an effort in the unit of the kind, and the rules that end a search,
    /// where the kind has them: a slack, and a share of fruitless clusters.
    fn params(&self, k: u32, effort: u32, rules: (Option<f32>, Option<f32>)) -> Params;

    /// Returns parameters for k results with this effort and the default rules.
    fn usual_params(&self, k: u32, effort: u32) -> Params {
        self.params(k, effort, (None, None))
    }

    /// Returns the parameters of a point of the recall curve, which was measured with `variant`.
    fn params_at(&self, k: u32, point: &Point, variant: Option<&str>) -> Params;

    /// Returns the variants that calibration compares, and the point that it compares them at.
    fn variants(&self) -> (&'static [&'static str], Point) {
        (&[], Point::default())
    }

    /// Returns the memory of queries, as far as the manifest tells; `None` where it is that of blocks of a graph. With
    /// `low_memory` fewer of them are in flight.
    fn planned_query(&self, _manifest: &Manifest, _low_memory: bool) -> Option<PlannedQuery> {
        None
    }

    /// Returns the reads of a query that are under way at once whatever its width, before its parameters are known.
    fn planned_reads_at_once(&self, _switches: &Switches) -> u32 {
        0
    }

    /// Returns the bytes of the doorbells of a search; 0 of a kind whose queries read for themselves.
    fn planned_doorbells_bytes(&self, _manifest: &Manifest, _options: &BatchOptions) -> u64 {
        0
    }

    /// Returns the bytes of a cache that holds all that queries read; 0 of a kind that is served without.
    fn usable_cache_bytes(&self, manifest: &Manifest) -> u64 {
        blocks::usable_cache_bytes(manifest)
    }

    /// Returns the most bytes in memory with which searches read nothing; `None` where the index is not moved there.
    fn resident_bytes_max(&self, _manifest: &Manifest) -> Option<u64> {
        None
    }

    /// Returns the roles of the files besides the data file that every server of a partitioned index needs whole.
    fn shared_roles(&self, manifest: &Manifest) -> Vec<&'static str> {
        blocks::shared_roles(manifest)
    }

    /// Returns the ranges of all units in the data file of a whole index.
    ///
    /// # Errors
    /// A table that is missing or damaged.
    fn unit_ranges(&self, _folder: &Path, manifest: &Manifest) -> Result<UnitRanges> {
        Ok(UnitRanges::Equal { count: manifest.blocks.count, bytes: manifest.blocks.bytes as u64 })
    }

    /// Checks the data files of an index.
    ///
    /// # Errors
    /// An interruption. Damage is no error but a finding.
    fn verify(&self, check: &mut Verification<'_>) -> Result<()>;

    /// Checks the files of all servers of a partitioned index whose units are not blocks of a graph. Returns false, and
    /// does nothing, where they are.
    ///
    /// # Errors
    /// As [`Kind::verify`].
    fn verify_parts(&self, _check: &mut Verification<'_>, _placement: &Placement) -> Result<bool> {
        Ok(false)
    }
}
