//! The units of one server in memory, each by itself, so that two versions of a partition share what both have.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use stratann_core::kinds::grid_ivf::{Line, Unit};
use stratann_storage::data_file::{FileEntry, Sum, check_entry, open_file};
use stratann_storage::{Error, Result};

use crate::units::{Held, UnitRanges};

/// See the module.
pub(super) struct HeldUnits {
    // By number; `None` for those of other servers.
    units: Vec<Option<Unit>>,
    bytes: u64,
    // Of them, those that another version had before.
    shared: u64,
}

impl HeldUnits {
    /// Reads the file of a server, which is compared with the manifest. Units that are in `known` with the same bytes
    /// are taken from there.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub(super) fn read(
        (folder, name): (&Path, &str),
        entry: &FileEntry,
        (ranges, held): (&UnitRanges, Held<'_>),
        known: Option<&HeldUnits>,
    ) -> Result<HeldUnits> {
        let path = folder.join(name);
        let failed = |e| Error::io("reading", &path, &e);
        let mut file = open_file(&path, entry)?;
        stratann_storage::budget::release_freed();
        let mut sum = Sum::default();
        let mut found = HeldUnits { units: vec![None; ranges.len()], bytes: 0, shared: 0 };
        let mut left = entry.bytes;
        for range in ranges.iter().filter(|range| held.holds(range.unit)) {
            let length = range.bytes.min(left) as usize;
            let mut unit: Unit = std::iter::repeat_n(Line([0; 64]), length.div_ceil(64)).collect();
            let Some(lines) = Arc::get_mut(&mut unit) else { continue };
            let bytes = &mut bytemuck::cast_slice_mut::<Line, u8>(lines)[..length];
            file.read_exact(bytes).map_err(failed)?;
            sum.add(bytes);
            left -= length as u64;
            let at = range.unit as usize;
            let other = known.and_then(|known| known.units.get(at)?.as_ref()).filter(|other| **other == unit);
            let memory = size_of_val(&*unit) as u64;
            found.bytes += memory;
            found.shared += if other.is_some() { memory } else { 0 };
            found.units[at] = Some(other.cloned().unwrap_or(unit));
        }
        let mut rest = vec![0; left as usize];
        file.read_exact(&mut rest).map_err(failed)?;
        sum.add(&rest);
        check_entry(&path, &sum.entry(), entry)?;
        Ok(found)
    }

    /// All units of the index, by number.
    pub(super) fn all(&self) -> &[Option<Unit>] {
        &self.units
    }

    /// Memory of all, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes + (self.units.len() * size_of::<Option<Unit>>()) as u64
    }

    /// Memory of those that another version had before, bytes.
    pub(super) fn shared_bytes(&self) -> u64 {
        self.shared
    }

    /// Memory of the units here that a server holds of another version, bytes.
    pub(super) fn bytes_in(&self, ranges: &UnitRanges, held: Held<'_>) -> u64 {
        let here = |unit: u32| self.units.get(unit as usize).is_some_and(Option::is_some);
        ranges
            .iter()
            .filter(|range| held.holds(range.unit) && here(range.unit))
            .map(|range| range.bytes)
            .sum()
    }
}
