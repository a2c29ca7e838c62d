//! State of an unfinished build, and the lock that keeps it alone in its folder.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stratann_storage::durable::write_synced;
use stratann_storage::output::AtomicFile;
use stratann_storage::{Error, Result, input};

use super::stage::Stage;
use crate::manifest::PARTIAL;

/// Version of what stages leave to those after them. A build that another version began cannot be resumed: before 2,
/// codes were trained.
pub(crate) const STAGES_VERSION: (&str, u32) = ("stages_version", 2);

/// The finished stages, and what they were made with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    /// Everything that the content depends on.
    made_with: BTreeMap<String, serde_json::Value>,
    /// Facts that each finished stage leaves to those after it.
    finished: BTreeMap<String, serde_json::Value>,
}

impl State {
    /// The first thing that was otherwise. The version of the stages comes before options, which may have changed with
    /// it.
    fn differs<'a>(&'a self, made_with: &'a BTreeMap<String, serde_json::Value>) -> Option<Difference<'a>> {
        let other = |key: &str| self.made_with.get(key) != made_with.get(key);
        if other(STAGES_VERSION.0) {
            return Some(Difference::Version);
        }
        let mut options = made_with.keys().chain(self.made_with.keys());
        options.find(|key| other(key)).map(|key| Difference::Option(key))
    }
}

/// Why a build cannot go on from a state.
enum Difference<'a> {
    /// Another version of this program left it.
    Version,
    /// An option has another value.
    Option(&'a str),
}

/// The folder of an unfinished build.
pub(crate) struct Partial {
    folder: PathBuf,
    state: State,
}

impl Partial {
    /// Opens the unfinished build in `out`, or begins a new one.
    ///
    /// # Errors
    /// With `resume`, one that another version or another program left, or that was made with other options. Without,
    /// what is there is removed.
    pub(crate) fn open(
        out: &Path,
        made_with: BTreeMap<String, serde_json::Value>,
        resume: bool,
    ) -> Result<Partial> {
        let folder = out.join(PARTIAL);
        let path = folder.join("state.json");
        if resume && path.exists() {
            let bytes = input::read(&path)?;
            let state: State = serde_json::from_slice(&bytes).map_err(|_| foreign(&folder))?;
            return match state.differs(&made_with) {
                None => Ok(Partial { folder, state }),
                Some(Difference::Version) => Err(foreign(&folder)),
                Some(Difference::Option(name)) => Err(Error::bad_input(format!(
                    "{} was begun with another {name}; resume with the same options, or delete it",
                    folder.display()
                ))),
            };
        }
        // Nothing to resume (a build killed before its first stage leaves nothing), or not asked to: begin a new build.
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(|e| Error::io("removing", &folder, &e))?;
        }
        std::fs::create_dir_all(&folder).map_err(|e| Error::io("creating", &folder, &e))?;
        let partial = Partial { folder, state: State { made_with, finished: BTreeMap::new() } };
        partial.save()?;
        Ok(partial)
    }

    /// The unfinished build in `out`, as another process knows it; its stages are that one's to finish.
    ///
    /// # Errors
    /// When there is none, or it was made with other options.
    pub(crate) fn attach(
        out: &Path,
        state: State,
        made_with: &BTreeMap<String, serde_json::Value>,
    ) -> Result<Partial> {
        let folder = out.join(PARTIAL);
        if !folder.join("state.json").is_file() {
            return Err(Error::bad_input(format!(
                "{} cannot be seen from here; name a folder that all machines share",
                folder.display()
            )));
        }
        match state.differs(made_with) {
            None => Ok(Partial { folder, state }),
            Some(Difference::Version) => Err(foreign(&folder)),
            Some(Difference::Option(name)) => Err(Error::bad_input(format!(
                "a part of the build in {} was begun with another {name}; give each task the same files and options",
                folder.display()
            ))),
        }
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Place of a file of an unfinished build.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The facts of a finished stage; `None` when it has not finished.
    pub(crate) fn facts<T: for<'a> Deserialize<'a>>(&self, stage: Stage) -> Option<T> {
        serde_json::from_value(self.state.finished.get(stage.name)?.clone()).ok()
    }

    /// Whether a stage has finished.
    pub(crate) fn has(&self, stage: Stage) -> bool {
        self.state.finished.contains_key(stage.name)
    }

    /// The facts of a finished task; `None` when it has not finished.
    pub(crate) fn task_facts(&self, task: &str) -> Option<serde_json::Value> {
        input::read(&self.task_path(task)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok())
    }

    /// Remembers that a task has finished; its files are durable by now.
    pub(crate) fn finish_task(&self, task: &str, facts: &serde_json::Value) -> Result<()> {
        let mut file = AtomicFile::create(&self.task_path(task))?;
        file.write(facts.to_string().as_bytes())?;
        file.commit()
    }

    fn task_path(&self, task: &str) -> PathBuf {
        self.path(&format!("task-{task}.json"))
    }

    /// Remembers that a stage has finished; its files are durable by now.
    pub(crate) fn finish<T: Serialize>(&mut self, stage: Stage, facts: &T) -> Result<()> {
        let value =
            serde_json::to_value(facts).map_err(|e| Error::bad_input(format!("state of the build: {e}")))?;
        self.state.finished.insert(stage.name.into(), value);
        self.save()
    }

    fn save(&self) -> Result<()> {
        let path = self.path("state.json");
        let aside = self.path("state.json.new");
        let text = serde_json::to_vec_pretty(&self.state)
            .map_err(|e| Error::bad_input(format!("state of the build: {e}")))?;
        write_synced(&aside, &text)
            .and_then(|()| std::fs::rename(&aside, &path))
            .map_err(|e| Error::io("writing", &path, &e))
    }

    /// Removes the folder; the index no longer needs it.
    pub(crate) fn remove(&self) -> Result<()> {
        std::fs::remove_dir_all(&self.folder).map_err(|e| Error::io("removing", &self.folder, &e))
    }
}

/// The error for an unfinished build of another version.
fn foreign(folder: &Path) -> Error {
    Error::bad_input(format!(
        "{} was left by another version of stratann, and its stages are not those of this one; delete it and build \
         without --resume, or resume with that version",
        folder.display()
    ))
}

/// The facts of an earlier stage.
pub(crate) fn facts<T: for<'a> Deserialize<'a>>(partial: &Partial, stage: Stage) -> Result<T> {
    partial.facts(stage).ok_or_else(|| {
        let folder = partial.folder().display();
        Error::corrupt(format!("{folder} does not say what came of {}; start the build again", stage.name))
    })
}

/// Removes the files of a failed build that cannot be resumed. The caller holds the lock and removes an empty folder.
pub(crate) fn abandon(out: &Path) {
    let _ = std::fs::remove_dir_all(out.join(PARTIAL));
}

/// The lock of a folder, held as long as it lives. The file is removed with it.
pub(crate) struct FolderLock {
    path: PathBuf,
    // Closed after the file is removed, so that nobody locks a file that is about to go.
    _file: File,
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Locks a folder against other writers.
pub(crate) fn lock(out: &Path) -> Result<FolderLock> {
    let path = out.join("lock");
    let failed = |e| Error::io("locking", &path, &e);
    loop {
        let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(Error::bad_input(format!(
                    "another process is writing to {}; wait for it to end, or name another folder",
                    out.display()
                )));
            }
            Err(std::fs::TryLockError::Error(e)) => return Err(failed(e)),
        }
        // The holder before may have removed the file after it was opened here: another one may hold its successor.
        let own = file.metadata().map_err(failed)?;
        let is_current = std::fs::metadata(&path).is_ok_and(|m| (m.dev(), m.ino()) == (own.dev(), own.ino()));
        if is_current {
            return Ok(FolderLock { path, _file: file });
        }
    }
}
