//! Publishing the newest version of a folder into a store.

use std::fs::File;
use std::io::Read;
use std::path::Path as FilePath;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, WriteMultipart};
use stratann_engine::durable::hex;
use stratann_engine::manifest::{FileEntry, Manifest};
use stratann_engine::{Error, Progress, Result};
use xxhash_rust::xxh3::Xxh3;

use super::Store;

/// Bytes that are read, hashed and sent at a time.
const CHUNK_BYTES: usize = 8 << 20;
/// Chunks under way.
const CHUNKS: usize = 2;

impl Store {
    /// Uploads the newest version in `folder` and makes it the store's newest. Returns its number there; when the
    /// store's newest is the same build already, the number of that version.
    ///
    /// # Errors
    /// No index in the folder; a file that differs from its manifest, before anything is published; a store that does
    /// not answer; another publisher at the same time; an interruption. The next attempt finds the files that were
    /// uploaded.
    pub fn publish(&self, folder: &FilePath, progress: &dyn Progress) -> Result<u64> {
        let (_, manifest) = Manifest::read(folder)?;
        manifest.check_newest()?;
        let newest = self.newest()?;
        if let Some((number, theirs)) = &newest
            && theirs.build_id == manifest.build_id
        {
            return Ok(*number);
        }
        let total = manifest.files.values().map(|f| f.bytes).sum();
        progress.stage("uploading", total, "bytes");
        for (name, entry) in &manifest.files {
            self.upload(&folder.join(name), &self.file_path(&manifest.build_id, name), entry, progress)?;
        }
        // The number of a damaged manifest is taken too.
        let number = self.versions()?.last().copied().unwrap_or(0) + 1;
        self.create_manifest(number, &manifest)?;
        Ok(number)
    }

    fn create_manifest(&self, number: u64, manifest: &Manifest) -> Result<()> {
        let path = self.manifest_path(number);
        let payload = PutPayload::from(manifest.to_text()?.into_bytes());
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.runtime.block_on(self.objects.put_opts(&path, payload, options)) {
            Ok(_) => Ok(()),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Err(Error::bad_input(format!(
                    "{} was published by somebody else meanwhile; run this again to publish the next version",
                    self.shown(&path).display()
                )))
            }
            Err(e) => Err(self.failed("publishing", &path, &e)),
        }
    }

    /// Uploads one file, unless it is there, and checks it meanwhile.
    fn upload(&self, file: &FilePath, path: &Path, entry: &FileEntry, progress: &dyn Progress) -> Result<()> {
        let there = self.runtime.block_on(self.objects.head(path));
        // Its name has the hash of its build, and uploads appear whole or not at all: an object of the right length is
        // the right one.
        if there.is_ok_and(|meta| meta.size == entry.bytes) {
            progress.advance(entry.bytes);
            return Ok(());
        }
        let begun = self.runtime.block_on(self.objects.put_multipart(path));
        let upload = begun.map_err(|e| self.failed("uploading", path, &e))?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, CHUNK_BYTES);
        match self.send(file, path, entry, &mut upload, progress) {
            Ok(()) => {
                let ended = self.runtime.block_on(upload.finish());
                ended.map(|_| ()).map_err(|e| self.failed("uploading", path, &e))
            }
            Err(e) => {
                // The sent parts are of no use. If this fails too, the store's own rules clean up.
                let _ = self.runtime.block_on(upload.abort());
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
        let mut source = File::open(file).map_err(|e| Error::io("opening", file, &e))?;
        let (mut sum, mut length) = (Xxh3::new(), 0u64);
        let mut chunk = vec![0; CHUNK_BYTES.min(entry.bytes as usize + 1)];
        loop {
            if progress.interrupted() {
                return Err(Error::interrupted());
            }
            let count = source.read(&mut chunk).map_err(|e| Error::io("reading", file, &e))?;
            if count == 0 {
                break;
            }
            sum.update(&chunk[..count]);
            length += count as u64;
            let room = self.runtime.block_on(upload.wait_for_capacity(CHUNKS));
            room.map_err(|e| self.failed("uploading", path, &e))?;
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
