//! Memory nodes: opening, and changes.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use stratann_cluster::node_registry::found;
use stratann_engine::exec::BatchOptions;
use stratann_engine::index::{Acknowledged, CacheBudget, Index, OpenOptions, PLACE, Unfinished};
use stratann_engine::search;
use stratann_storage::Result;
use stratann_storage::link::Tls;
use stratann_storage::remote_memory::{Credentials, read_key};

use crate::error;

/// Options with which an index in memory nodes is opened.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct MemoryOpening {
    key_file: PathBuf,
    tls: Option<(PathBuf, PathBuf, PathBuf)>,
    ram_budget: Option<u64>,
    cache_budget: Option<u64>,
}

impl MemoryOpening {
    /// Opens it, with a cache.
    ///
    /// # Errors
    /// A key that cannot be read; an etcd that has no memory node; as `Index::open_memory`.
    pub(crate) fn open(&self, addresses: &[String]) -> Result<Index> {
        let secret = read_key(&self.key_file, &|_| {})?;
        let tls =
            self.tls.as_ref().map(|(own, key, authority)| Tls::read(own, key, authority)).transpose()?;
        // A size that was given is of this index alone.
        let lends_cache = self.cache_budget.is_none() && self.ram_budget.is_none();
        let options = OpenOptions { ram_budget: self.ram_budget, lends_cache, ..OpenOptions::default() };
        let mut index = Index::open_memory(&found(addresses)?, &Credentials::new(secret, tls), options)?;
        let cache = self.cache_budget.map_or(CacheBudget::Auto, CacheBudget::Bytes);
        let reserve = search::usual_reserve(index.manifest(), BatchOptions::default(), 1);
        let bytes = cache.shared_bytes(index.manifest(), self.ram_budget, &reserve);
        index.set_cache_budget(bytes);
        index.account().check(self.ram_budget, "open this index")?;
        Ok(index)
    }
}

/// End of a call: all is updated, or a part and why not the rest.
pub(crate) type Made = std::result::Result<Acknowledged, Unfinished>;

/// An error of a call that has changed nothing is an error of the work.
///
/// # Errors
/// Those.
pub(crate) fn made(made: Made) -> Result<Made> {
    match made {
        Err(Unfinished { error, tried: 0, .. }) => Err(error),
        made => Ok(made),
    }
}

/// The end of a call as a dict for the Python half.
pub(crate) fn updates_dict(py: Python<'_>, made: Made, groups_rebuilt: u64) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    match made {
        Ok(made) => {
            dict.set_item("count", made.count)?;
            dict.set_item("place", PLACE)?;
            dict.set_item("groups_rebuilt", groups_rebuilt)?;
        }
        Err(unfinished) => {
            dict.set_item("error", error::in_python(&unfinished.to_string()))?;
            dict.set_item("acknowledged", unfinished.acknowledged)?;
        }
    }
    Ok(dict)
}
