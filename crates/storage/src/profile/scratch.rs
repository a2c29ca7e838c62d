//! A file for timing reads.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stratann_core::build::hash;

use crate::{Error, Progress, Result, tier};

/// A file without a name, which is removed with the program that opened it.
pub struct ScratchFile {
    pub(super) file: Arc<File>,
    /// Whether the file system allows reads past the page cache.
    pub direct: bool,
    pub(super) bytes: u64,
    /// Folder, for errors.
    pub(super) folder: PathBuf,
}

/// Bytes per write; the length of a file is a multiple.
pub(super) const PIECE_BYTES: u64 = 1 << 20;
/// Writes between two syncs, to estimate the time of all writes.
const SYNC_PIECES: u64 = 16;

impl ScratchFile {
    /// Writes `bytes` into a file in `folder`, or fewer when `time` is over, but at least one piece.
    ///
    /// # Errors
    /// When the file cannot be written, or the work is interrupted.
    pub fn create(folder: &Path, bytes: u64, time: Duration, progress: &dyn Progress) -> Result<ScratchFile> {
        let failed = |e: std::io::Error| Error::io("writing a scratch file in", folder, &e);
        let (mut writer, path) = create_unique(folder).map_err(failed)?;
        let opened = tier::open_direct(&path);
        // The name is removed before the first write, so that the file cannot be left behind.
        std::fs::remove_file(&path).map_err(failed)?;
        let (file, direct) = opened.map_err(failed)?;
        let mut chunk = vec![0u8; PIECE_BYTES as usize];
        let (started, pieces) = (Instant::now(), (bytes / PIECE_BYTES).max(1));
        progress.stage("writing a scratch file", pieces, "MiB");
        let mut written = 0;
        while written < pieces && (written == 0 || started.elapsed() < time) {
            progress.check_interrupted()?;
            fill(&mut chunk, written);
            writer.write_all(&chunk).map_err(failed)?;
            written += 1;
            if written % SYNC_PIECES == 0 || written == pieces {
                writer.sync_data().map_err(failed)?;
            }
            progress.advance(1);
        }
        writer.sync_data().map_err(failed)?;
        let folder = folder.to_path_buf();
        Ok(ScratchFile { file: Arc::new(file), direct, bytes: written * PIECE_BYTES, folder })
    }
}

fn create_unique(folder: &Path) -> std::io::Result<(File, PathBuf)> {
    let mut attempt = 0;
    loop {
        let path = folder.join(format!(".stratann-scratch-{}-{attempt}", std::process::id()));
        match File::create_new(&path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists && attempt < 100 => attempt += 1,
            other => return other.map(|file| (file, path)),
        }
    }
}

/// Incompressible bytes, so that no lower layer can compress or deduplicate them.
fn fill(chunk: &mut [u8], piece: u64) {
    let words = chunk.chunks_exact_mut(8).zip(0..);
    words.for_each(|(word, i)| word.copy_from_slice(&hash(piece, 1, i).to_le_bytes()));
}
