//! A storage engine in memory for tests: its disk fails, loses power and lies as a test says.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use super::engine::{Engine, EngineKind, LogEnd, Trouble, Written};
use super::key::Key;
use super::memory::Memory;

/// The engine.
pub(crate) const FAKE: EngineKind =
    EngineKind { open, end_of_log: |_, _| Ok(LogEnd::default()), cut_log: |_| Ok(()), empty_log: |_| Ok(()) };

type Group = Vec<(Key, Option<Vec<u8>>)>;

/// The disk of an engine, which outlives it.
#[derive(Default)]
pub(crate) struct Disk {
    rows: BTreeMap<Key, Vec<u8>>,
    /// Groups that are not on the disk, and whether it said that they are.
    unsynced: Vec<(Group, bool)>,
    /// Whether it says that groups are durable which are not.
    pub(crate) lies: bool,
    /// Writes that go well before one fails.
    pub(crate) fails_in: Option<u64>,
    /// Whether the one that fails is there afterwards.
    pub(crate) lands: bool,
}

impl Disk {
    /// Loses the newest groups of those that were not synced, as many as given. Returns whether there were any, and
    /// whether any of them was acknowledged.
    pub(crate) fn lose(&mut self, groups: usize) -> (bool, bool) {
        let kept = self.unsynced.len().saturating_sub(groups);
        let lost = self.unsynced.split_off(kept);
        for (group, _) in std::mem::take(&mut self.unsynced) {
            put(&mut self.rows, group);
        }
        (!lost.is_empty(), lost.iter().any(|(_, is_acknowledged)| *is_acknowledged))
    }

    fn all(&self) -> BTreeMap<Key, Vec<u8>> {
        let mut rows = self.rows.clone();
        self.unsynced.iter().for_each(|(group, _)| put(&mut rows, group.clone()));
        rows
    }
}

fn put(rows: &mut BTreeMap<Key, Vec<u8>>, group: Group) {
    for (key, value) in group {
        match value {
            Some(value) => _ = rows.insert(key, value),
            None => _ = rows.remove(&key),
        }
    }
}

static DISKS: LazyLock<Mutex<HashMap<u64, Arc<Mutex<Disk>>>>> = LazyLock::new(Mutex::default);
static NEXT: AtomicU64 = AtomicU64::new(1);

fn lock(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(|e| e.into_inner())
}

/// The disk of the engine in a folder.
pub(crate) fn disk_of(folder: &Path) -> Arc<Mutex<Disk>> {
    let number = stratann_storage::input::read(&folder.join("disk")).unwrap_or_default();
    let number = str::from_utf8(&number).ok().and_then(|number| number.parse().ok()).unwrap_or(0);
    DISKS.lock().unwrap_or_else(|e| e.into_inner()).entry(number).or_default().clone()
}

fn open(folder: &Path, _: &Memory) -> Result<Box<dyn Engine>, Trouble> {
    let trouble = |e: std::io::Error| Trouble { why: e.to_string(), is_disk: true };
    if !folder.join("disk").exists() {
        std::fs::create_dir_all(folder).map_err(trouble)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        std::fs::write(folder.join("disk"), number.to_string()).map_err(trouble)?;
    }
    Ok(Box::new(Fake(disk_of(folder))))
}

struct Fake(Arc<Mutex<Disk>>);

impl Engine for Fake {
    fn write(&self, changes: &mut dyn Iterator<Item = (Key, Option<Vec<u8>>)>, _: u64) -> Written {
        let mut disk = lock(&self.0);
        let group: Group = changes.collect();
        let fails = disk.fails_in == Some(0);
        disk.fails_in = disk.fails_in.and_then(|left| left.checked_sub(1));
        if !fails || disk.lands {
            match disk.lies {
                true => disk.unsynced.push((group, !fails)),
                false => put(&mut disk.rows, group),
            }
        }
        match fails {
            true => Written::Unknown(Trouble { why: "the disk failed".into(), is_disk: true }),
            false => Written::Durable,
        }
    }

    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>, Trouble> {
        Ok(lock(&self.0).all().get(key).cloned())
    }

    fn scan(&self, from: &Key, to: &Key, take: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<(), Trouble> {
        let rows = lock(&self.0).all();
        if from < to {
            let mut range = rows.range(from.clone()..to.clone());
            while range.next().is_some_and(|(key, value)| take(key.as_bytes(), value)) {}
        }
        Ok(())
    }

    fn settle(&self) -> Result<(), Trouble> {
        Ok(())
    }
}
