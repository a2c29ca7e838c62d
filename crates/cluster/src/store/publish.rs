//! Publishing the newest version of a folder into a store.

use std::io::Read;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, WriteMultipart};
use stratann_engine::manifest::{Manifest, number_after};
use stratann_engine::spread::scatter::{self, Description};
use stratann_storage::data_file::{FileEntry, open_file};
use stratann_storage::durable::hex;
use stratann_storage::names::BuildId;
use stratann_storage::{Error, Progress, Result};
use xxhash_rust::xxh3::Xxh3;

use super::{OPERATION_TIME, Store};

/// Bytes that are read, hashed and sent at a time.
const CHUNK_BYTES: usize = 8 << 20;
/// Chunks under way.
const CHUNKS: usize = 2;
/// Longest time until one of them is stored.
const CHUNKS_TIME: Duration = Duration::from_secs(1800);

impl Store {
    /// Uploads the newest version in `folder` and makes it the store's newest. Returns its number there; when the
    /// store's newest is the same build already, the number of that version.
    ///
    /// # Errors
    /// No index in the folder, and no separate indexes; a file that differs from its manifest, before anything is
    /// published; a store that does not answer; another publisher at the same time; an interruption. The next attempt
    /// finds the files that were uploaded.
    pub fn publish(&self, folder: &FilePath, progress: &dyn Progress) -> Result<u64> {
        let Version { build, text, indexes } = match scatter::is_apart(folder) {
            true => parts(folder)?,
            false => {
                let (_, manifest) = Manifest::read(folder)?;
                manifest.check_newest()?;
                let (build, text) = (manifest.build_id, manifest.to_text()?);
                Version { build, text, indexes: vec![(folder.to_path_buf(), manifest)] }
            }
        };
        if let Some((number, theirs)) = &self.newest()?
            && theirs.build_id() == build
        {
            return Ok(*number);
        }
        let bytes = |manifest: &Manifest| manifest.files.values().map(|file| file.bytes).sum::<u64>();
        progress.stage("uploading", indexes.iter().map(|index| bytes(&index.1)).sum(), "bytes");
        let has_parts = scatter::is_apart(folder);
        for (folder, manifest) in &indexes {
            for (name, entry) in &manifest.files {
                let path = self.file_path(manifest.build_id, name);
                self.upload(&folder.join(name), &path, entry, progress)?;
            }
            if has_parts {
                self.put_part_manifest(manifest)?;
            }
        }
        // The number of a damaged manifest is taken too.
        let newest = self.versions()?.last().copied().unwrap_or(0);
        let number = number_after(newest, &self.shown(&self.prefix))?;
        self.create_manifest(number, text)?;
        Ok(number)
    }

    /// Its name has the hash of its build: a repeated upload writes the same bytes.
    fn put_part_manifest(&self, manifest: &Manifest) -> Result<()> {
        let path = self.part_manifest_path(manifest.build_id);
        let payload = PutPayload::from(manifest.to_text()?.into_bytes());
        self.run("publishing", &path, OPERATION_TIME, self.objects.put(&path, payload)).map(|_| ())
    }

    fn create_manifest(&self, number: u64, text: String) -> Result<()> {
        let path = self.manifest_path(number);
        let payload = PutPayload::from(text.into_bytes());
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let is_created = self.run("publishing", &path, OPERATION_TIME, async {
            use object_store::Error::{AlreadyExists, Precondition};
            match self.objects.put_opts(&path, payload, options).await {
                Ok(_) => Ok(true),
                Err(AlreadyExists { .. } | Precondition { .. }) => Ok(false),
                Err(e) => Err(e),
            }
        })?;
        if is_created {
            return Ok(());
        }
        Err(Error::bad_input(format!(
            "{} was published by somebody else meanwhile; run this again to publish the next version",
            self.shown(&path).display()
        )))
    }

    /// Uploads one file, unless it is there, and checks it meanwhile.
    fn upload(&self, file: &FilePath, path: &Path, entry: &FileEntry, progress: &dyn Progress) -> Result<()> {
        let there = self.run("looking for", path, OPERATION_TIME, self.objects.head(path));
        // Its name has the hash of its build, and uploads appear whole or not at all: an object of the right length is
        // the right one.
        if there.is_ok_and(|meta| meta.size == entry.bytes) {
            progress.advance(entry.bytes);
            return Ok(());
        }
        let upload = self.run("uploading", path, OPERATION_TIME, self.objects.put_multipart(path))?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, CHUNK_BYTES);
        match self.send(file, path, entry, &mut upload, progress) {
            Ok(()) => self.run("uploading", path, CHUNKS_TIME, upload.finish()).map(|_| ()),
            Err(e) => {
                // The sent parts are of no use. If this fails too, the store's own rules clean up.
                let _ = self.run("uploading", path, OPERATION_TIME, upload.abort());
                Err(e)
            }
        }
    }

    fn send(
        &self,
        file: &FilePath,
        path: &Path,
        entry: &FileEntry,
        upload: &mut WriteMultipart,
        progress: &dyn Progress,
    ) -> Result<()> {
        let mut source = open_file(file, entry)?;
        let (mut sum, mut length) = (Xxh3::new(), 0u64);
        let mut chunk = vec![0; CHUNK_BYTES.min(entry.bytes as usize + 1)];
        loop {
            progress.check_interrupted()?;
            let count = source.read(&mut chunk).map_err(|e| Error::io("reading", file, &e))?;
            if count == 0 {
                break;
            }
            sum.update(&chunk[..count]);
            length += count as u64;
            self.run("uploading", path, CHUNKS_TIME, upload.wait_for_capacity(CHUNKS))?;
            // Inside the runtime, because the call begins to send.
            self.runtime.block_on(async { upload.write(&chunk[..count]) });
            progress.advance(count as u64);
        }
        if length != entry.bytes || hex(sum.digest()) != entry.xxh3 {
            return Err(Error::corrupt(format!(
                "{} is not what the manifest says; nothing was published; restore it or build the index again",
                file.display()
            )));
        }
        Ok(())
    }
}

/// A version that is to be published.
struct Version {
    build: BuildId,
    /// Text of its manifest.
    text: String,
    /// Folder and manifest of each index in it.
    indexes: Vec<(PathBuf, Manifest)>,
}

/// The version of a folder of separate indexes.
fn parts(folder: &FilePath) -> Result<Version> {
    let description = Description { version: None, ..scatter::describe(folder)? };
    let read = |part: usize| {
        let own = description.folder(folder, part);
        let (_, manifest) = Manifest::read(&own)?;
        manifest.check_newest()?;
        if description.builds.get(part) != Some(&manifest.build_id) {
            return Err(Error::bad_input(format!(
                "{} is not the index that {} was made with; make the folder again",
                own.display(),
                folder.display()
            )));
        }
        Ok((own, manifest))
    };
    let indexes = (0..description.count()).map(read).collect::<Result<_>>()?;
    Ok(Version { build: description.build_id(), text: description.to_text()?, indexes })
}
