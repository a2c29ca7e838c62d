//! Files that tiers read, numbered in the process.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use stratann_core::query::StoreId;

/// Number of a place that is read, a file or the memory of a node. No other one of the process has it, before or after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// The numbers of the stores of an open index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIds(u64);

/// Stores that an index may have: their numbers are bytes.
const STORES: u64 = 1 << 8;

static NEXT: AtomicU64 = AtomicU64::new(STORES);

impl FileIds {
    /// The numbers of an index that is alone in its process, which is read in memory. Its first store has number 0.
    pub const ALONE: FileIds = FileIds(0);

    /// Numbers for the stores of one more index.
    pub fn take() -> FileIds {
        FileIds(NEXT.fetch_add(STORES, Ordering::Relaxed))
    }

    /// The number of a store.
    pub fn of(self, store: StoreId) -> FileId {
        FileId(self.0 + u64::from(store.0))
    }

    /// The store that has a number; `None` where another index has it.
    pub fn store(self, file: FileId) -> Option<StoreId> {
        file.0.checked_sub(self.0).and_then(|store| u8::try_from(store).ok()).map(StoreId)
    }
}

/// Open files of one index, by store.
#[derive(Debug)]
pub struct Files {
    ids: FileIds,
    files: Vec<OpenFile>,
}

/// A file, and its length when it was opened.
#[derive(Clone, Debug)]
pub(super) struct OpenFile {
    pub(super) file: Arc<File>,
    pub(super) bytes: u64,
}

impl OpenFile {
    pub(super) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}

impl Files {
    /// Numbers files: the first one is store 0.
    ///
    /// # Errors
    /// A file without a length.
    pub fn new(files: &[Arc<File>], ids: FileIds) -> io::Result<Arc<Files>> {
        let open = |file: &Arc<File>| {
            file.metadata().map(|facts| OpenFile { file: file.clone(), bytes: facts.len() })
        };
        Ok(Arc::new(Files { ids, files: files.iter().map(open).collect::<io::Result<_>>()? }))
    }

    /// The numbers of the files.
    pub fn ids(&self) -> FileIds {
        self.ids
    }
}

/// Files that a tier may read now, of any number of indexes.
#[derive(Clone, Debug, Default)]
pub(super) struct FileTable(Vec<Arc<Files>>);

impl FileTable {
    pub(super) fn set(&mut self, files: &[Arc<Files>]) {
        self.0.clear();
        self.0.extend_from_slice(files);
        self.0.sort_by_key(|files| files.ids.0);
    }

    pub(super) fn get(&self, file: FileId) -> Option<&OpenFile> {
        let after = self.0.partition_point(|files| files.ids.0 <= file.0);
        let files = self.0.get(after.checked_sub(1)?)?;
        files.files.get(usize::from(files.ids.store(file)?.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_many_indexes_are_found_by_number() {
        let folder = tempfile::tempdir().unwrap();
        let file = |bytes: usize| {
            let path = folder.path().join(bytes.to_string());
            std::fs::write(&path, vec![0; bytes]).unwrap();
            Arc::new(File::open(path).unwrap())
        };
        let sets: Vec<Arc<Files>> = (0..20)
            .map(|set| {
                let files: Vec<Arc<File>> = (0..1 + set % 4).map(|store| file(100 * set + store)).collect();
                Files::new(&files, FileIds::take()).unwrap()
            })
            .collect();
        let mut table = FileTable::default();
        assert!(table.get(FileId(0)).is_none());
        let given: Vec<Arc<Files>> = sets.iter().rev().step_by(2).cloned().collect();
        table.set(&given);
        for (set, files) in sets.iter().enumerate() {
            for store in 0..5u8 {
                let found = table.get(files.ids().of(StoreId(store))).map(|file| file.bytes);
                let is_there = set % 2 == 1 && usize::from(store) < 1 + set % 4;
                assert_eq!(found, is_there.then_some((100 * set + usize::from(store)) as u64));
            }
        }
        assert_eq!(FileIds::ALONE.of(StoreId(3)), FileId(3));
        assert_eq!(sets[1].ids().store(sets[0].ids().of(StoreId(0))), None);
    }
}
