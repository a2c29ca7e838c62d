//! File of the codes of all nodes, in the order of ids, from which a build reads the codes of blocks: they may exceed
//! the memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stratann_storage::{Error, Result, input};

use crate::parallel;

/// Name of the file.
pub(crate) const NAME: &str = "codes.tmp";

/// Largest gap between two codes that is read instead of skipped.
const SKIPPED_BYTES: usize = 4 << 10;
/// Most bytes of one read.
const READ_BYTES: usize = 64 << 10;
/// Codes that a thread fetches at a time.
const TOGETHER: usize = 4096;

/// The open file.
pub(crate) struct CodeFile {
    file: File,
    path: PathBuf,
    code_bytes: usize,
}

impl CodeFile {
    pub(crate) fn open(folder: &Path, code_bytes: usize) -> Result<CodeFile> {
        let path = folder.join(NAME);
        let file = input::open(&path)?;
        Ok(CodeFile { file, path, code_bytes })
    }

    /// Reads the codes of `ids`, which may repeat.
    pub(crate) fn read(&self, mut ids: Vec<u32>) -> Result<CodeTable> {
        ids.sort_unstable();
        ids.dedup();
        let mut codes = vec![0u8; ids.len() * self.code_bytes];
        let parts = ids.chunks(TOGETHER).zip(codes.chunks_mut(TOGETHER * self.code_bytes));
        parallel::try_map_with(parts, Vec::new, |buffer, (ids, codes)| {
            self.read_ascending(ids, codes, buffer)
        })?;
        Ok(CodeTable { ids, codes, code_bytes: self.code_bytes })
    }

    fn read_ascending(&self, ids: &[u32], mut codes: &mut [u8], buffer: &mut Vec<u8>) -> Result<()> {
        let size = self.code_bytes;
        let mut rest = ids;
        while let Some(&first) = rest.first() {
            let is_near = |w: &&[u32]| {
                (w[1] - w[0]) as usize * size <= SKIPPED_BYTES
                    && ((w[1] - first) as usize + 1) * size <= READ_BYTES
            };
            let count = 1 + rest.windows(2).take_while(is_near).count();
            let (run, later) = rest.split_at(count);
            let (out, codes_later) = codes.split_at_mut(count * size);
            buffer.resize(((run[count - 1] - first) as usize + 1) * size, 0);
            self.file
                .read_exact_at(buffer, u64::from(first) * size as u64)
                .map_err(|e| Error::io("reading", &self.path, &e))?;
            for (id, code) in run.iter().zip(out.chunks_exact_mut(size)) {
                code.copy_from_slice(&buffer[(id - first) as usize * size..][..size]);
            }
            (rest, codes) = (later, codes_later);
        }
        Ok(())
    }
}

/// Some of the codes, in memory.
pub(crate) struct CodeTable {
    ids: Vec<u32>,
    codes: Vec<u8>,
    code_bytes: usize,
}

impl CodeTable {
    /// Returns the concatenated codes of `ids`, all of which were read.
    pub(crate) fn of(&self, ids: &[u32]) -> Vec<u8> {
        let at = ids.iter().filter_map(|id| self.ids.binary_search(id).ok());
        at.flat_map(|i| &self.codes[i * self.code_bytes..(i + 1) * self.code_bytes]).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn codes_are_those_of_the_ids(ids in prop::collection::vec(0u32..5000, 0..300), code_bytes in 1usize..40) {
            let dir = tempfile::tempdir().unwrap();
            let code = |id: u32| (0..code_bytes as u32).map(move |i| (id * 31 + i) as u8);
            let all: Vec<u8> = (0..5000).flat_map(code).collect();
            std::fs::write(dir.path().join(NAME), all).unwrap();
            let table = CodeFile::open(dir.path(), code_bytes).unwrap().read(ids.clone()).unwrap();
            prop_assert_eq!(table.of(&ids), ids.iter().flat_map(|&id| code(id)).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn a_file_that_is_too_short_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), [0; 30]).unwrap();
        let file = CodeFile::open(dir.path(), 4).unwrap();
        assert!(file.read(vec![6]).is_ok());
        assert!(file.read(vec![7]).map(|_| ()).unwrap_err().message.contains(NAME));
        assert!(CodeFile::open(&dir.path().join("no"), 4).is_err());
    }
}
