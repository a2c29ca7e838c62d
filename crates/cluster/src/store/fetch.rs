//! Fetching the files of one server into a folder of its own.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path as FilePath, PathBuf};
use std::time::Instant;

use futures_util::StreamExt;
use object_store::ObjectStoreExt;
use stratann_engine::manifest::Manifest;
use stratann_engine::spread::moved::PartOf;
use stratann_engine::spread::scatter::{self, Description};
use stratann_storage::data_file::{FileEntry, open_file};
use stratann_storage::durable::{hex, sync_folder, write_synced};
use stratann_storage::names::BuildId;
use stratann_storage::{Error, ErrorKind, Progress, Result};
use xxhash_rust::xxh3::Xxh3;

use super::version::{Here, Version};
use super::{Store, only_part, time_for};

mod before;

use before::Before;

/// Bytes that are read or written at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// A version on this machine's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Number of the version in the store.
    pub number: u64,
    /// The folder to open.
    pub folder: PathBuf,
    /// Bytes that were asked of the store; all others were here.
    pub downloaded_bytes: u64,
    /// Bytes that were copied from the files of another version here.
    pub copied_bytes: u64,
    /// Warning of newer versions in the store that are damaged.
    pub warning: Option<String>,
}

impl Fetched {
    /// Amount of the download, in words.
    pub fn text(&self) -> String {
        match self.copied_bytes {
            0 => format!("{} bytes downloaded", self.downloaded_bytes),
            copied => {
                format!("{} bytes downloaded, {copied} copied from the version before", self.downloaded_bytes)
            }
        }
    }
}

/// Place of the files of an index.
#[derive(Clone, Copy)]
struct Target<'a> {
    // The folder of all versions.
    home: &'a FilePath,
    folder: &'a FilePath,
    // Number of the manifest in the folder.
    number: u64,
    // The server of a partitioned index.
    server: Option<usize>,
}

/// Describes separate indexes, all of whose files for this server are here.
fn write_description(folder: &FilePath, description: &Description) -> Result<()> {
    let path = folder.join(scatter::DESCRIPTION);
    let aside = folder.join(format!("{}.partial", scatter::DESCRIPTION));
    write_synced(&aside, description.to_text()?.as_bytes())
        .and_then(|()| std::fs::rename(&aside, &path))
        .map_err(|e| Error::io("writing", &path, &e))?;
    sync_folder(folder)
}

impl Store {
    /// Downloads the files of the newest version that `server` needs (all of them for `None`) to a folder under `home`,
    /// named after the build. Undamaged files are kept, so that an interrupted download continues. What a version
    /// under `home` has that was partitioned from the same index is copied: files with the same content, and of the
    /// server's part the units that it held before.
    ///
    /// # Errors
    /// An empty store, or one that does not answer; a server that the index does not have; a file that arrives damaged;
    /// a full disk; an interruption.
    pub fn fetch(&self, home: &FilePath, server: Option<u8>, progress: &dyn Progress) -> Result<Fetched> {
        let (number, version) = self.newest()?.ok_or_else(|| {
            Error::bad_input(format!(
                "{} holds no index; publish one with `stratann cluster publish`",
                self.name
            ))
        })?;
        let folder = home.join(version.build_id().to_string());
        std::fs::create_dir_all(&folder).map_err(|e| Error::io("creating", &folder, &e))?;
        let mut fetched = Fetched {
            number,
            folder: folder.clone(),
            downloaded_bytes: 0,
            copied_bytes: 0,
            warning: version.damaged_note(number),
        };
        let server = server.map(usize::from);
        match &version {
            Version::Index(manifest) => {
                let into = Target { home, folder: &folder, number, server };
                self.fetch_index(manifest, &into, &mut fetched, progress)?;
            }
            Version::Parts(description, _) => {
                let Some(server) = server else {
                    return Err(Error::bad_input(format!(
                        "{} holds separate indexes for {} servers; set server, its number among them",
                        self.name, description.servers
                    )));
                };
                let (part, local) = description.place(server, FilePath::new(&self.name))?;
                let manifest = self.part_manifest(description.builds[part])?;
                let own = description.folder(&folder, part);
                std::fs::create_dir_all(&own).map_err(|e| Error::io("creating", &own, &e))?;
                let server = manifest.spread.is_some().then_some(local);
                let into = Target { home, folder: &own, number: 1, server };
                self.fetch_index(&manifest, &into, &mut fetched, progress)?;
                let described = Description { version: Some(number), ..description.clone() };
                write_description(&folder, &described)?;
            }
        }
        Ok(fetched)
    }

    /// Downloads what a server needs of one index, and publishes its manifest in the folder.
    fn fetch_index(
        &self,
        manifest: &Manifest,
        into: &Target<'_>,
        fetched: &mut Fetched,
        progress: &dyn Progress,
    ) -> Result<()> {
        let Target { home, folder, number, server } = *into;
        let needed = manifest.needed_by(server)?;
        progress.stage("fetching", needed.iter().map(|(_, f)| f.bytes).sum(), "bytes");
        let before = Before::find(home, folder, manifest);
        let own = server.and_then(|server| manifest.part_name(server));
        // The part is last: what it is compared by is in the other files.
        let (parts, shared): (Vec<_>, Vec<_>) = needed.into_iter().partition(|file| Some(file.0) == own);
        for (name, entry) in shared.into_iter().chain(parts) {
            let path = folder.join(name);
            if is_sound(&path, entry, progress)? {
                progress.advance(entry.bytes);
                continue;
            }
            if let Some(before) = &before {
                if before.link(entry, &path, progress)? {
                    fetched.copied_bytes += entry.bytes;
                    progress.advance(entry.bytes);
                    continue;
                }
                let new =
                    server.filter(|_| own == Some(name)).map(|server| PartOf { folder, manifest, server });
                if let Some(new) = new
                    && let Some((copied, downloaded)) =
                        self.update_part(before, new, entry, &path, progress)?
                {
                    fetched.copied_bytes += copied;
                    fetched.downloaded_bytes += downloaded;
                    continue;
                }
            }
            self.download(manifest.build_id, name, entry, folder, progress)?;
            fetched.downloaded_bytes += entry.bytes;
        }
        if stratann_engine::manifest::newest(folder)? != Some(number) {
            manifest.publish(folder, number)?;
        }
        Ok(())
    }

    pub(super) fn download(
        &self,
        build: BuildId,
        name: &str,
        entry: &FileEntry,
        folder: &FilePath,
        progress: &dyn Progress,
    ) -> Result<()> {
        let from = self.file_path(build, name);
        let aside = folder.join(format!("{name}.partial"));
        let mut file = File::create(&aside).map_err(|e| Error::io("creating", &aside, &e))?;
        let (mut sum, mut length) = (Xxh3::new(), 0u64);
        let time = time_for(entry.bytes);
        let deadline = Instant::now() + time;
        let got = self.run("fetching", &from, time, self.objects.get(&from))?;
        let mut stream = got.into_stream();
        // What is longer than the manifest says is not read to its end.
        while length <= entry.bytes {
            let left = deadline.saturating_duration_since(Instant::now());
            let next = self.runtime.block_on(async { tokio::time::timeout(left, stream.next()).await });
            let Some(chunk) = next.map_err(|_| self.late("fetching", &from, time))? else { break };
            progress.check_interrupted()?;
            let chunk = chunk.map_err(|e| self.failed("fetching", &from, &e))?;
            sum.update(&chunk);
            length += chunk.len() as u64;
            file.write_all(&chunk).map_err(|e| Error::io("writing", &aside, &e))?;
            progress.advance(chunk.len() as u64);
        }
        if length != entry.bytes || hex(sum.digest()) != entry.xxh3 {
            let _ = std::fs::remove_file(&aside);
            return Err(Error {
                kind: ErrorKind::Corrupt,
                message: format!(
                    "{} arrived damaged, or is not what its manifest says; try again, then publish the index again",
                    self.shown(&from).display()
                ),
            });
        }
        let path = folder.join(name);
        file.sync_all()
            .and_then(|()| std::fs::rename(&aside, &path))
            .map_err(|e| Error::io("writing", &path, &e))?;
        sync_folder(folder)
    }
}

/// Whether a file exists and has the content of its manifest entry.
fn is_sound(path: &FilePath, entry: &FileEntry, progress: &dyn Progress) -> Result<bool> {
    let Ok(mut file) = open_file(path, entry) else { return Ok(false) };
    let mut sum = Xxh3::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        progress.check_interrupted()?;
        match file.read(&mut chunk).map_err(|e| Error::io("reading", path, &e))? {
            0 => return Ok(hex(sum.digest()) == entry.xxh3),
            count => sum.update(&chunk[..count]),
        }
    }
}

/// Returns the newest version under `home` that `server` can open without the store: all files are there, with the
/// lengths of its manifest. `None` when there is none.
///
/// # Errors
/// A folder that cannot be read.
pub fn newest_fetched(home: &FilePath, server: Option<u8>) -> Result<Option<Here>> {
    let entries = match std::fs::read_dir(home) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io("reading", home, &e)),
    };
    let folders = entries.flatten().map(|entry| entry.path()).filter(|path| is_build(path));
    let complete = folders.filter_map(|folder| Here::read(folder, server.map(usize::from)));
    Ok(complete.max_by_key(|here| here.number))
}

/// Whether a path is named as the folder of a build.
fn is_build(path: &FilePath) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(BuildId::parse).is_some() && path.is_dir()
}

/// Removes the folders of other builds under `home`. No process may have them open.
///
/// # Errors
/// When one cannot be removed.
pub fn drop_others(home: &FilePath, keep: &FilePath) -> Result<()> {
    let entries = std::fs::read_dir(home).map_err(|e| Error::io("reading", home, &e))?;
    // Only folders of this program: with a manifest, or of an unfinished fetch.
    for path in entries.flatten().map(|e| e.path()).filter(|path| is_build(path) && path != keep) {
        std::fs::remove_dir_all(&path).map_err(|e| Error::io("removing", &path, &e))?;
    }
    Ok(())
}
