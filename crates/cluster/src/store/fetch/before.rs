//! The part of a new version that a server has already: files of the version before, and the units of its part that
//! have not moved.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path as FilePath, PathBuf};

use object_store::path::Path;
use stratann_engine::manifest::Manifest;
use stratann_engine::spread::moved::{MovedUnits, Origin, PartOf, Piece, moved};
use stratann_storage::data_file::FileEntry;
use stratann_storage::durable::{hex, sync_folder};
use stratann_storage::{Error, ErrorKind, Progress, Result, input};
use xxhash_rust::xxh3::Xxh3;

use super::super::{Store, time_for};
use super::{CHUNK_BYTES, is_build, is_sound, only_part};

/// Pieces that are copied and fetched together, and their bytes.
const BATCH_PIECES: usize = 256;
const BATCH_BYTES: u64 = 8 << 20;

/// Another copy on this machine's disk of the same index, or of one that was partitioned from the same index with the
/// part of one server.
pub(super) struct Before {
    folder: PathBuf,
    manifest: Manifest,
    server: usize,
}

impl Before {
    /// The newest such index under `home`.
    pub(super) fn find(home: &FilePath, new: &FilePath, manifest: &Manifest) -> Option<Before> {
        let entries = |folder: &FilePath| std::fs::read_dir(folder).into_iter().flatten().flatten();
        let builds = entries(home).map(|entry| entry.path()).filter(|path| is_build(path));
        // Of separate indexes each has a folder of its own.
        let folders = builds.flat_map(|build| {
            let inner = entries(&build).map(|entry| entry.path()).filter(|path| path.is_dir());
            inner.chain([build.clone()]).collect::<Vec<_>>()
        });
        let found = folders.filter(|path| path != new).filter_map(|folder| {
            let (number, read) = Manifest::read(&folder).ok()?;
            let server = only_part(&folder, &read);
            let (old, new) = (read.spread.as_ref(), manifest.spread.as_ref());
            let is_moved =
                server.is_some() && old.zip(new).is_some_and(|(old, new)| old.source == new.source);
            let is_same = read.build_id == manifest.build_id;
            let before = Before { folder, manifest: read, server: server.unwrap_or(0) };
            (is_moved || is_same).then_some(((is_same, number), before))
        });
        found.max_by_key(|found| found.0).map(|found| found.1)
    }

    /// Gives a file with this content, if there is one, a second name; copies it where the file system cannot. Returns
    /// whether the file is there then.
    ///
    /// # Errors
    /// An interruption.
    pub(super) fn link(&self, entry: &FileEntry, to: &FilePath, progress: &dyn Progress) -> Result<bool> {
        let Some((name, _)) = self.manifest.files.iter().find(|file| file.1 == entry) else {
            return Ok(false);
        };
        let from = self.folder.join(name);
        if !is_sound(&from, entry, progress)? {
            return Ok(false);
        }
        // A damaged file may be there.
        let _ = std::fs::remove_file(to);
        let copied =
            || std::fs::copy(&from, to).and_then(|_| File::open(to)).and_then(|file| file.sync_all()).is_ok();
        Ok(std::fs::hard_link(&from, to).is_ok() || (copied() && is_sound(to, entry, progress)?))
    }

    fn part(&self) -> PartOf<'_> {
        PartOf { folder: &self.folder, manifest: &self.manifest, server: self.server }
    }
}

/// A part that is made from an old one and from ranges of the new one in the store.
struct PartFile<'a> {
    old: File,
    new: File,
    sum: Xxh3,
    copied: u64,
    downloaded: u64,
    progress: &'a dyn Progress,
}

impl PartFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.sum.update(bytes);
        self.progress.advance(bytes.len() as u64);
        self.new.write_all(bytes)
    }

    fn copy(&mut self, from: u64, bytes: u64) -> std::io::Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES.min(bytes as usize)];
        for at in (0..bytes).step_by(CHUNK_BYTES) {
            let chunk = &mut chunk[..CHUNK_BYTES.min((bytes - at) as usize)];
            self.old.read_exact_at(chunk, from + at)?;
            self.write(chunk)?;
        }
        self.copied += bytes;
        Ok(())
    }
}

impl Store {
    /// Makes a part from what the part before has of it, and fetches the rest as ranges. Returns how many bytes were
    /// copied and how many were asked of the store; `None` when nothing can be copied, or the result is not what the
    /// manifest says. The whole file is to be fetched then.
    ///
    /// # Errors
    /// An interruption.
    pub(super) fn update_part(
        &self,
        before: &Before,
        new: PartOf<'_>,
        entry: &FileEntry,
        path: &FilePath,
        progress: &dyn Progress,
    ) -> Result<Option<(u64, u64)>> {
        let Some(moved) = moved(before.part(), new).ok().flatten() else { return Ok(None) };
        if !moved.pieces().any(|piece| matches!(piece.origin, Origin::Old(_))) {
            return Ok(None);
        }
        let Some(name) = new.manifest.part_name(new.server) else { return Ok(None) };
        let aside = path.with_extension("bin.partial");
        let from = self.file_path(new.manifest.build_id, name);
        match self.make_part(before, &moved, &from, &aside, progress) {
            Err(e) if e.kind == ErrorKind::Interrupted => Err(e),
            Ok(made)
                if made.copied + made.downloaded <= entry.bytes && hex(made.sum.digest()) == entry.xxh3 =>
            {
                let done = made.new.sync_all().and_then(|()| std::fs::rename(&aside, path));
                done.map_err(|e| Error::io("writing", path, &e))?;
                sync_folder(new.folder)?;
                Ok(Some((made.copied, made.downloaded)))
            }
            Ok(_) | Err(_) => {
                progress.note(&format!(
                    "the part of the version before does not lead to {}; it is fetched as a whole",
                    path.display()
                ));
                let _ = std::fs::remove_file(&aside);
                Ok(None)
            }
        }
    }

    fn make_part<'a>(
        &self,
        before: &Before,
        moved: &MovedUnits,
        from: &Path,
        aside: &FilePath,
        progress: &'a dyn Progress,
    ) -> Result<PartFile<'a>> {
        let old = before.manifest.part_name(before.server).map(|name| before.folder.join(name));
        let old = old.ok_or_else(|| Error::corrupt("the version before names no part"))?;
        let failed = |e: std::io::Error| Error::io("writing", aside, &e);
        let mut part = PartFile {
            old: input::open(&old)?,
            new: File::create(aside).map_err(failed)?,
            sum: Xxh3::new(),
            copied: 0,
            downloaded: 0,
            progress,
        };
        let mut at = 0;
        let mut pieces = moved.pieces().flat_map(split).peekable();
        while pieces.peek().is_some() {
            progress.check_interrupted()?;
            // As many pieces as one request brings.
            let (mut batch, mut ranges, mut length) = (Vec::new(), Vec::new(), 0);
            while let Some(piece) =
                pieces.next_if(|p| batch.len() < BATCH_PIECES && length + p.bytes <= BATCH_BYTES)
            {
                if piece.origin == Origin::New {
                    ranges.push(at..at + piece.bytes);
                    part.downloaded += piece.bytes;
                }
                at += piece.bytes;
                length += piece.bytes;
                batch.push(piece);
            }
            let fetched = match ranges.is_empty() {
                true => Vec::new(),
                false => {
                    self.run("fetching", from, time_for(length), self.objects.get_ranges(from, &ranges))?
                }
            };
            let mut fetched = fetched.into_iter();
            for Piece { origin, bytes } in batch {
                match origin {
                    Origin::Old(from) => part.copy(from, bytes),
                    Origin::Zeros => part.write(&vec![0; bytes as usize]),
                    Origin::New => part.write(&fetched.next().unwrap_or_default()),
                }
                .map_err(failed)?;
            }
        }
        Ok(part)
    }
}

/// Pieces of limited length: an interruption is noticed between two of them, and ranges fit in memory.
fn split(piece: Piece) -> impl Iterator<Item = Piece> {
    (0..piece.bytes).step_by(BATCH_BYTES as usize).map(move |at| {
        let bytes = BATCH_BYTES.min(piece.bytes - at);
        let origin = match piece.origin {
            Origin::Old(from) => Origin::Old(from + at),
            other => other,
        };
        Piece { origin, bytes }
    })
}
