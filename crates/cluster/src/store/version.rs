//! A version in a store: one index, or the separate indexes of a cluster's parts.

use std::path::{Path, PathBuf};

use stratann_engine::manifest::{self, DamagedManifest, Manifest};
use stratann_engine::spread::scatter::{self, Description};
use stratann_storage::names::BuildId;
use stratann_storage::{Error, Result, data_file};

/// Content of a version.
#[derive(Clone, Debug, PartialEq)]
pub enum Version {
    /// One index.
    Index(Box<Manifest>),
    /// An index for each part, and the newer versions that are damaged.
    Parts(Description, Vec<DamagedManifest>),
}

impl Version {
    /// Identifies its content.
    pub fn build_id(&self) -> BuildId {
        match self {
            Version::Index(manifest) => manifest.build_id,
            Version::Parts(description, _) => description.build_id(),
        }
    }

    /// Number of servers that it is made for; `None` for an index that is not partitioned.
    pub fn servers(&self) -> Option<usize> {
        match self {
            Version::Index(manifest) => manifest.spread.as_ref().map(|spread| spread.servers),
            Version::Parts(description, _) => Some(description.servers),
        }
    }

    /// Warning of newer versions that are damaged; `None` when there are none.
    pub fn damaged_note(&self, number: u64) -> Option<String> {
        match self {
            Version::Index(manifest) => manifest.damaged_note(number),
            Version::Parts(_, damaged) => manifest::damaged_note(damaged, number),
        }
    }

    /// The build ids of its indexes.
    pub(super) fn builds(&self) -> Vec<BuildId> {
        match self {
            Version::Index(manifest) => vec![manifest.build_id],
            Version::Parts(description, _) => description.builds.clone(),
        }
    }

    pub(super) fn with_damaged(self, newer: Vec<DamagedManifest>) -> Version {
        match self {
            Version::Index(manifest) => {
                Version::Index(Box::new(Manifest { damaged_newer: newer, ..*manifest }))
            }
            Version::Parts(description, _) => Version::Parts(description, newer),
        }
    }

    /// Reads the text of a version; `origin` is where it comes from, for errors.
    pub(super) fn from_text(text: &str, origin: &Path) -> Result<Version> {
        match Description::is_one(text) {
            true => {
                let description = Description::from_text(text, origin)?;
                if description.builds.len() != description.count() {
                    return Err(Error::corrupt(format!(
                        "{} is damaged (it names other builds than parts); publish it again",
                        origin.display()
                    )));
                }
                Ok(Version::Parts(description, Vec::new()))
            }
            false => Ok(Version::Index(Box::new(Manifest::from_text(text, origin)?))),
        }
    }
}

/// A version on this machine's disk that a server can open.
#[derive(Clone, Debug, PartialEq)]
pub struct Here {
    /// Number of the version in the store.
    pub number: u64,
    /// The folder to open.
    pub folder: PathBuf,
    /// Number of servers that it is made for; `None` for an index that is not partitioned.
    pub servers: Option<usize>,
    /// The server whose files are here, when they are those of one.
    pub server: Option<usize>,
}

impl Here {
    /// Reads what `server` can open in a folder, or the one server whose files are there; `None` when files are
    /// missing.
    pub(super) fn read(folder: PathBuf, server: Option<usize>) -> Option<Here> {
        if scatter::is_apart(&folder) {
            return Here::of_parts(folder, server);
        }
        let (number, manifest) = Manifest::read(&folder).ok()?;
        let only = only_part(&folder, &manifest);
        is_complete(&folder, &manifest, server.or(only))?;
        let servers = manifest.spread.map(|spread| spread.servers);
        Some(Here { number, folder, servers, server: only })
    }

    fn of_parts(folder: PathBuf, server: Option<usize>) -> Option<Here> {
        let description = scatter::describe(&folder).ok()?;
        let has = |server: usize| {
            let (part, local) = description.place(server, &folder).ok()?;
            let own = description.folder(&folder, part);
            let (_, manifest) = Manifest::read(&own).ok()?;
            is_complete(&own, &manifest, manifest.spread.is_some().then_some(local))
        };
        let held: Vec<usize> = (0..description.servers).filter(|&server| has(server).is_some()).collect();
        let only = if let [one] = held[..] { Some(one) } else { None };
        let is_here = server.map_or(only.is_some(), |server| held.contains(&server));
        let (number, servers) = (description.version?, Some(description.servers));
        is_here.then_some(Here { number, folder, servers, server: only })
    }
}

/// Whether all files that a server needs are there, with the lengths of the manifest.
fn is_complete(folder: &Path, manifest: &Manifest, server: Option<usize>) -> Option<()> {
    let has = |(name, entry): &(&str, &data_file::FileEntry)| {
        std::fs::metadata(folder.join(name)).is_ok_and(|file| file.len() == entry.bytes)
    };
    manifest.needed_by(server).ok()?.iter().all(has).then_some(())
}

/// The number of the server whose units a folder holds, when they are those of one server.
pub fn only_part(folder: &Path, manifest: &Manifest) -> Option<usize> {
    let servers = manifest.spread.as_ref()?.servers;
    let has = |server: &usize| manifest.part_name(*server).is_some_and(|name| folder.join(name).is_file());
    let mut held = (0..servers).filter(has);
    held.next().filter(|_| held.next().is_none())
}
