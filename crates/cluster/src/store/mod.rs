//! The store from which the servers of a cluster get their index: a shared folder, or an S3-compatible object store.
//!
//! | object | content |
//! |---|---|
//! | `PREFIX/BUILD/vN-….bin` | the data files of one build, under its id; never changed once written |
//! | `PREFIX/manifest-N.json` | version N: the manifest of a build; created once, never changed |
//! | `PREFIX/BUILD/manifest.json` | the manifest of one of several builds, where version N is of separate indexes |
//!
//! A version exists when its manifest does. The manifest is created last, by a request that fails if the name is taken:
//! of two publishers one fails, nothing is mixed, and readers see whole versions only. Data files are named by the hash
//! of their content: a repeated upload of a build writes the same bytes.

mod fetch;
mod publish;
mod replies;
#[cfg(test)]
mod tests;
mod version;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientConfigKey, ObjectStore, ObjectStoreExt, RetryConfig};
use stratann_engine::manifest::{DamagedManifest, Manifest, TEXT_BYTES_MAX, number_of};
use stratann_storage::error::quoted;
use stratann_storage::names::BuildId;
use stratann_storage::{Error, ErrorKind, Result};

use replies::Allowance;

pub use fetch::{Fetched, drop_others, newest_fetched};
pub use version::{Here, Version, only_part};

/// Time for which a request to a store that does not answer is repeated. Servers that have their files start without
/// it.
const RETRY_TIME: Duration = Duration::from_secs(10);
/// A store that sends nothing for this long does not answer.
const SILENCE: &str = "30 seconds";
/// Longest time of an operation, its data aside.
const OPERATION_TIME: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 120 });
/// Least rate of data, bytes a second.
const LEAST_RATE: u64 = 16 << 10;

/// Longest time of an operation with so many bytes of data.
fn time_for(bytes: u64) -> Duration {
    OPERATION_TIME + Duration::from_secs(bytes / LEAST_RATE)
}

/// The place of one index in a store.
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    name: String,
    allowance: Allowance,
    // Runs the asynchronous client of the store.
    runtime: tokio::runtime::Runtime,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({})", self.name)
    }
}

impl Store {
    /// Opens `s3://BUCKET/PREFIX`, with region, endpoint and credentials from the usual `AWS_…` variables of the
    /// environment; or a folder, which is created when it is missing.
    ///
    /// # Errors
    /// An address that is neither; a folder that cannot be created.
    pub fn open(place: &str) -> Result<Store> {
        Store::open_with(place, std::env::vars())
    }

    /// As [`Store::open`], with variables other than those of the environment.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with(place: &str, variables: impl IntoIterator<Item = (String, String)>) -> Result<Store> {
        let (runtime, allowance) = (crate::runtime()?, Allowance::default());
        let (objects, prefix): (Arc<dyn ObjectStore>, Path) = match place.split_once("://") {
            Some(("s3", rest)) => (
                Arc::new(s3(place, variables, &allowance)?),
                Path::from(rest.split_once('/').map_or("", |(_, p)| p)),
            ),
            Some((other, _)) => {
                return Err(Error::bad_input(format!(
                    "{place}: stores of kind {other} are unknown; use s3://BUCKET/PREFIX or a folder"
                )));
            }
            None => (Arc::new(folder(place)?), Path::default()),
        };
        Ok(Store { objects, prefix, name: place.to_string(), allowance, runtime })
    }

    /// Returns the newest version whose manifest is sound, and its number, if there is any version. It names the newer
    /// ones that are damaged.
    ///
    /// # Errors
    /// A store that does not answer; a manifest of a newer format; no sound manifest.
    pub fn newest(&self) -> Result<Option<(u64, Version)>> {
        let mut damaged_newer = Vec::new();
        for number in self.versions()?.into_iter().rev() {
            match self.version(number) {
                Ok(version) => return Ok(Some((number, version.with_damaged(damaged_newer)))),
                Err(e) if e.kind == ErrorKind::Corrupt => {
                    damaged_newer.push(DamagedManifest { number, why: e.message });
                }
                Err(e) => return Err(e),
            }
        }
        match damaged_newer.into_iter().next() {
            None => Ok(None),
            Some(damaged) => Err(Error::corrupt(damaged.why)),
        }
    }

    /// Returns the numbers of all versions, ascending.
    ///
    /// # Errors
    /// A store that does not answer.
    pub fn versions(&self) -> Result<Vec<u64>> {
        let under = (!self.prefix.as_ref().is_empty()).then_some(&self.prefix);
        let listed =
            self.run("listing", &self.prefix, OPERATION_TIME, self.objects.list_with_delimiter(under))?;
        let names = listed.objects.iter().filter_map(|object| object.location.filename());
        let mut numbers: Vec<u64> = names.filter_map(number_of).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn version(&self, number: u64) -> Result<Version> {
        let path = self.manifest_path(number);
        Version::from_text(&self.read_text(&path)?, &self.shown(&path))
    }

    /// The manifest of one of several indexes.
    fn part_manifest(&self, build: BuildId) -> Result<Manifest> {
        let path = self.part_manifest_path(build);
        let manifest = Manifest::from_text(&self.read_text(&path)?, &self.shown(&path))?;
        if manifest.build_id != build {
            return Err(Error::corrupt(format!(
                "{} is the manifest of another build, {}; publish the indexes again",
                self.shown(&path).display(),
                manifest.build_id
            )));
        }
        Ok(manifest)
    }

    fn read_text(&self, path: &Path) -> Result<String> {
        let got = self.run("reading", path, OPERATION_TIME, self.objects.get(path))?;
        if got.meta.size > TEXT_BYTES_MAX {
            return Err(Error::corrupt(format!(
                "{} has {} bytes, and a manifest at most {TEXT_BYTES_MAX}; publish the index again",
                self.shown(path).display(),
                got.meta.size
            )));
        }
        let bytes = self.run("reading", path, OPERATION_TIME, got.bytes())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Runs one operation to its end, within a time.
    fn run<T>(
        &self,
        what: &str,
        path: &Path,
        time: Duration,
        operation: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        self.allowance.renew();
        match self.runtime.block_on(async { tokio::time::timeout(time, operation).await }) {
            Ok(ended) => ended.map_err(|e| self.failed(what, path, &e)),
            Err(_) => Err(self.late(what, path, time)),
        }
    }

    fn late(&self, what: &str, path: &Path, time: Duration) -> Error {
        Error {
            kind: ErrorKind::Io,
            message: format!(
                "{what} {} has no end after {} s; check the connection to the store",
                self.shown(path).display(),
                time.as_secs()
            ),
        }
    }

    fn part_manifest_path(&self, build: BuildId) -> Path {
        self.file_path(build, "manifest.json")
    }

    fn manifest_path(&self, number: u64) -> Path {
        self.prefix.clone().join(format!("manifest-{number}.json"))
    }

    fn file_path(&self, build: BuildId, name: &str) -> Path {
        self.prefix.clone().join(build.to_string()).join(name)
    }

    /// Deletes all versions but the newest `keep`, and the files that no other version names.
    ///
    /// A server that is fetching one of them fails, and then finds a newer one.
    ///
    /// # Errors
    /// A store that does not answer; some versions may have been deleted then, each of them whole.
    pub fn drop_old(&self, keep: usize) -> Result<Vec<u64>> {
        let versions = self.versions()?;
        let (old, kept) = versions.split_at(versions.len().saturating_sub(keep.max(1)));
        let mut needed = Vec::new();
        for &number in kept {
            needed.extend(self.version(number)?.builds());
        }
        for &number in old {
            let builds = self.version(number)?.builds();
            // The manifest first: without it the version does not exist, and no server begins to fetch it.
            self.delete(&self.manifest_path(number))?;
            for build in builds.into_iter().filter(|build| !needed.contains(build)) {
                self.delete_all(&self.prefix.clone().join(build.to_string()))?;
            }
        }
        Ok(old.to_vec())
    }

    fn delete(&self, path: &Path) -> Result<()> {
        self.run("deleting", path, OPERATION_TIME, async {
            match self.objects.delete(path).await {
                Err(object_store::Error::NotFound { .. }) => Ok(()),
                deleted => deleted,
            }
        })
    }

    fn delete_all(&self, under: &Path) -> Result<()> {
        let all = self.objects.list(Some(under)).try_collect::<Vec<_>>();
        let listed = self.run("listing", under, OPERATION_TIME, all)?;
        listed.iter().try_for_each(|object| self.delete(&object.location))
    }

    fn shown(&self, path: &Path) -> PathBuf {
        let inner = path.as_ref().strip_prefix(self.prefix.as_ref()).unwrap_or(path.as_ref());
        PathBuf::from(format!("{}/{}", self.name.trim_end_matches('/'), inner.trim_start_matches('/')))
    }

    fn failed(&self, what: &str, path: &Path, error: &object_store::Error) -> Error {
        let shown = self.shown(path);
        let (kind, hint) = match error {
            object_store::Error::NotFound { .. } => (ErrorKind::BadInput, "check the address of the store"),
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                (ErrorKind::Io, "check the AWS_… variables of the environment")
            }
            _ => (ErrorKind::Io, "check that the store can be reached"),
        };
        // The client's messages can have several lines, one for each attempt, and quote the store.
        let text = quoted(&error.to_string());
        Error { kind, message: format!("{what} {}: {text}; {hint}", shown.display()) }
    }
}

/// Returns whether a place is a store with published versions rather than the folder of an index: an address, or a
/// folder that has manifests and the folders of builds.
pub fn is_store(place: &str) -> bool {
    if place.contains("://") {
        return true;
    }
    let Ok(entries) = std::fs::read_dir(place) else { return false };
    let (mut has_manifest, mut has_build) = (false, false);
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        has_manifest |= name.starts_with("manifest-") && name.ends_with(".json");
        has_build |= BuildId::parse(&name).is_some() && entry.path().is_dir();
    }
    has_manifest && has_build
}

fn s3(
    place: &str,
    variables: impl IntoIterator<Item = (String, String)>,
    allowance: &Allowance,
) -> Result<impl ObjectStore> {
    crate::install_cryptography();
    let known = variables.into_iter().filter_map(|(name, value)| {
        let key = name.starts_with("AWS_").then(|| name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>())?;
        Some((key.ok()?, value))
    });
    // The client's own limit is one time for a request of any length. Each operation has its own here.
    let timed = AmazonS3Builder::new()
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::ReadTimeout), SILENCE)
        .with_config(AmazonS3ConfigKey::Client(ClientConfigKey::Timeout), "365 days");
    known
        .fold(timed, |builder, (key, value)| builder.with_config(key, value))
        .with_http_connector(allowance.clone())
        .with_url(place)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_retry(RetryConfig { max_retries: 4, retry_timeout: RETRY_TIME, ..RetryConfig::default() })
        .build()
        .map_err(|e| Error::bad_input(format!("{place}: {e}; write s3://BUCKET/PREFIX")))
}

fn folder(place: &str) -> Result<impl ObjectStore> {
    std::fs::create_dir_all(place).map_err(|e| Error::io("creating", place.as_ref(), &e))?;
    let store = LocalFileSystem::new_with_prefix(place)
        .map_err(|e| Error::bad_input(format!("{place}: {e}; give a folder")))?;
    Ok(store.with_fsync(true))
}
