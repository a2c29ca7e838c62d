//! Sources of bytes: a file that is read at offsets, or shared memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use stratann_storage::{Error, Result, input};

/// Bytes that can be shared between threads: a `Vec<u8>`, an `Arc<[u8]>`, an array of another language.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Random access to a fixed number of bytes, from any thread.
pub(super) enum Source {
    File { file: File, len: u64 },
    Memory(SharedBytes),
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Source> {
        let file = input::open(path)?;
        let len = file.metadata().map_err(|e| Error::io("reading", path, &e))?.len();
        Ok(Source::File { file, len })
    }

    pub(super) fn len(&self) -> u64 {
        match self {
            Source::File { len, .. } => *len,
            Source::Memory(bytes) => (**bytes).as_ref().len() as u64,
        }
    }

    /// Fills `out` from `offset` on; missing bytes are an error.
    pub(super) fn read_at(&self, path: &Path, offset: u64, out: &mut [u8]) -> Result<()> {
        match self {
            Source::File { file, .. } => {
                file.read_exact_at(out, offset).map_err(|e| Error::io("reading", path, &e))
            }
            Source::Memory(bytes) => {
                let all = (**bytes).as_ref();
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let end = start.saturating_add(out.len());
                match all.get(start..end) {
                    Some(part) => out.copy_from_slice(part),
                    None => {
                        let message =
                            format!("{}: shared bytes shrank to {} bytes", path.display(), all.len());
                        return Err(Error::bad_input(message));
                    }
                }
                Ok(())
            }
        }
    }
}
