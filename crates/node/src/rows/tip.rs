//! Number of the newest group that was acknowledged, outside of the engine.
//!
//! An engine cuts its log at the first damaged byte, as after a crash, and says nothing. Then it ends with an older
//! group than this file names. The file is written after each sync and is not synced itself, so it never names a group
//! that the disk has not.
//!
//! | offset | content |
//! |---|---|
//! | 0 and 512 | a slot; groups take them in turn |
//!
//! | offset in a slot | content, little-endian |
//! |---|---|
//! | 0 | group, `u64` |
//! | 8 | xxh3 of these 8 bytes, `u64` |

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stratann_storage::{Error, Result, durable, input};
use xxhash_rust::xxh3::xxh3_64;

const NAME: &str = "tip";
const UNFINISHED: &str = "tip.new";
const SLOT_BYTES: u64 = 512;
const SLOTS: u64 = 2;

pub(super) struct Tip {
    path: PathBuf,
    file: File,
}

impl Tip {
    /// Opens the file of a data folder, and reads the group that it names; `None` where the file is missing, which is
    /// made then.
    ///
    /// # Errors
    /// `Corrupt` when no slot is whole; `Io`.
    pub(super) fn open(folder: &Path) -> Result<(Tip, Option<u64>)> {
        let path = folder.join(NAME);
        let failed = |e: std::io::Error| Error::io("opening", &path, &e);
        if !path.try_exists().map_err(failed)? {
            // Under another name first: a part of the file would count as damage.
            let unfinished = folder.join(UNFINISHED);
            let bytes = [slot(0), vec![0; SLOT_BYTES as usize - 16], slot(0)].concat();
            let written = durable::write_synced(&unfinished, &bytes);
            written.and_then(|()| std::fs::rename(&unfinished, &path)).map_err(failed)?;
            return Ok((Tip { file: writable(&path).map_err(failed)?, path }, None));
        }
        let bytes = input::read_up_to(&path, SLOTS * SLOT_BYTES).map_err(failed)?;
        let slots = (0..SLOTS).filter_map(|slot| read_slot(&bytes, slot));
        let Some(group) = slots.max() else {
            return Err(Error::corrupt(format!(
                "{} is damaged, so it is not known whether the newest batches are still there; remove it to go on \
                 with those that are",
                path.display()
            )));
        };
        Ok((Tip { file: writable(&path).map_err(failed)?, path }, Some(group)))
    }

    /// Names a group. A failure is harmless: the file then names an older one.
    pub(super) fn write(&self, group: u64) -> std::io::Result<()> {
        self.file.write_all_at(&slot(group), group % SLOTS * SLOT_BYTES)
    }

    /// Checks that the engine ends with the named group or a later one. `log` says what became of its log.
    ///
    /// # Errors
    /// `Corrupt` when acknowledged groups are missing.
    pub(super) fn check(&self, named: u64, last_group: u64, engine: &Path, log: &str) -> Result<()> {
        if last_group >= named {
            return Ok(());
        }
        Err(Error::corrupt(format!(
            "{} ends with group {last_group} of its batches, but group {named} was acknowledged, so later batches are \
             damaged; its log {log}; restore a snapshot of the data folder, or remove {} to go on without them",
            engine.display(),
            self.path.display()
        )))
    }
}

fn writable(path: &Path) -> std::io::Result<File> {
    File::options().write(true).open(path)
}

fn slot(group: u64) -> Vec<u8> {
    let group = group.to_le_bytes();
    [group, xxh3_64(&group).to_le_bytes()].concat()
}

fn read_slot(bytes: &[u8], slot: u64) -> Option<u64> {
    let bytes = bytes.get((slot * SLOT_BYTES) as usize..)?;
    let (group, rest) = bytes.split_first_chunk::<8>()?;
    let sum = rest.first_chunk::<8>()?;
    (u64::from_le_bytes(*sum) == xxh3_64(group)).then(|| u64::from_le_bytes(*group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_whole_slot_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let (tip, named) = Tip::open(folder.path()).unwrap();
        assert_eq!(named, None);
        assert_eq!(Tip::open(folder.path()).unwrap().1, Some(0));
        (1..=7).for_each(|group| tip.write(group).unwrap());
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(Tip::open(folder.path()).unwrap().1, Some(7));
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            assert!([Some(6), Some(7)].contains(&Tip::open(folder.path()).unwrap().1), "{at}");
        }
        std::fs::write(&path, &whole[..7]).unwrap();
        let error = Tip::open(folder.path()).map(|_| ()).unwrap_err();
        assert!(error.message.contains("remove it"), "{error}");
        assert!(tip.check(7, 7, &path, "").is_ok() && tip.check(7, 8, &path, "").is_ok());
        assert!(tip.check(7, 6, &path, "").is_err());
    }
}
