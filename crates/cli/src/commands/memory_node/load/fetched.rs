//! The newest version of an index in a store, on this machine's disk.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use stratann_cluster::store::{Store, Version};
use stratann_engine::kinds::known::IN_MEMORY_NODES;
use stratann_storage::{Error, ErrorKind, Progress, Result};

/// A version that was fetched from a store.
pub(super) struct Fetched {
    /// Number of the version in the store.
    pub(super) version: u64,
    /// The folder to open.
    pub(super) folder: PathBuf,
    /// Warning of newer versions in the store that are damaged.
    pub(super) warning: Option<String>,
    _temporary: Option<Temporary>,
}

impl Fetched {
    /// Fetches the newest version into a folder below `data`, or into a temporary folder that lives as long as this.
    ///
    /// # Errors
    /// A store without an index, or with one that memory nodes cannot hold; a store that does not answer; a file that
    /// arrives damaged; a full disk; an interruption.
    pub(super) fn new(place: &str, data: Option<&Path>, progress: &dyn Progress) -> Result<Fetched> {
        let store = Store::open(place)?;
        if let Some((number, version)) = store.newest()? {
            check(place, number, &version)?;
        }
        let temporary = if data.is_none() { Some(Temporary::new()?) } else { None };
        let home = data.or(temporary.as_ref().map(|own| own.0.as_path())).unwrap_or(Path::new(""));
        let fetched = store.fetch(home, None, progress).map_err(|e| with_way_out(e, temporary.as_ref()))?;
        Ok(Fetched {
            version: fetched.number,
            folder: fetched.folder,
            warning: fetched.warning,
            _temporary: temporary,
        })
    }
}

/// Refuses what memory nodes cannot hold before any of it is fetched.
fn check(place: &str, number: u64, version: &Version) -> Result<()> {
    let kind = match version {
        Version::Index(manifest) if manifest.kind() == Some(IN_MEMORY_NODES) => return Ok(()),
        Version::Index(manifest) => format!("a {}", manifest.kind),
        Version::Parts(..) => "separate indexes for several servers".to_string(),
    };
    let held = IN_MEMORY_NODES.name();
    Err(Error::bad_input(format!(
        "version {number} in {place} is {kind}; memory nodes hold a {held}, so build one with --kind {held} and \
         publish it"
    )))
}

/// Names the way out where the temporary folder is what cannot be written. An error of the store has another one.
fn with_way_out(error: Error, temporary: Option<&Temporary>) -> Error {
    let is_there = |own: &Temporary| error.message.contains(&*own.0.to_string_lossy());
    match error.kind {
        ErrorKind::Io if temporary.is_some_and(is_there) => Error {
            message: format!("{}; --data names another folder for what is fetched", error.message),
            ..error
        },
        _ => error,
    }
}

/// A folder that goes when it is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Result<Temporary> {
        let base = std::env::temp_dir();
        for number in 0..1000 {
            let path = base.join(format!("stratann-load-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Temporary(path)),
                // Left by an earlier process of this number that was killed.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Error::io("creating", &path, &e)),
            }
        }
        Err(Error::bad_input(format!("{} has no free name; give --data", base.display())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // What cannot be removed stays for the system to clean.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_folder_is_named_where_the_temporary_one_fails() {
        let own = Temporary::new().unwrap();
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        let there = Error::io("writing", &own.0.join("index/region.bin"), &full);
        assert!(with_way_out(there.clone(), Some(&own)).message.contains("--data"));
        assert!(!with_way_out(there.clone(), None).message.contains("--data"));
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let store = Error::io("reading", Path::new("s3://bucket/index"), &refused);
        assert_eq!(with_way_out(store.clone(), Some(&own)).message, store.message);
        let damaged = Error::corrupt(there.message);
        assert_eq!(with_way_out(damaged.clone(), Some(&own)).message, damaged.message);
    }
}
