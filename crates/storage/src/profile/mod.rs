//! Figures of a cost model: speeds of a machine and one of its disks, measured once and kept in a file.
//!
//! OrchANN (§5.1, "Physical Cost Model") asks for three: the bandwidth of sequential reads, the latency of a random 4
//! KiB read, and the cost of a distance. A disk with many reads under way answers otherwise than one with a single
//! read, and both depend on the size, so a profile has these too.

mod compute;
mod disk;
mod fit;
mod kept;
pub mod network;
mod origin;
mod scratch;

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

pub use compute::{ComputeCosts, DistanceCost, TimedDistance};
pub use disk::{ALONE, DEPTHS, DiskCosts, LOADED, RandomReads, ReadLine, SIZES};
pub use disk::{Order, Reading, time_reads};
pub use kept::BUILD_OPTIONS;
pub use kept::KeptProfile;
pub use origin::Origin;
pub use scratch::ScratchFile;

use crate::budget::{free_disk_bytes, size};
use crate::durable::{seal, unseal};
use crate::output::OutputPath;
use crate::tier::IoChoice;
use crate::{Error, Progress, Result};

/// The newest version of the format that this program reads.
pub const FORMAT_VERSION: u32 = 1;
/// Says in the file what it is.
const FORMAT: &str = "stratann-profile";
/// Name of the file where none is given.
pub const FILE_NAME: &str = "stratann-profile.json";

/// A machine and a disk, measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// See [`FORMAT_VERSION`].
    pub format_version: u32,
    /// Machine, disk and time of the measurement.
    pub origin: Origin,
    /// Seconds that it took.
    pub seconds: f64,
    /// Time of the measurement; absent in profiles of before it was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measurement: Option<Measurement>,
    /// Reads.
    pub disk: DiskCosts,
    /// Distances.
    pub compute: ComputeCosts,
    /// Constants of the model of local indexes, where they have been fitted: builds then take these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalCosts>,
}

/// When, and by which program, a profile was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measurement {
    /// Seconds since 1970.
    pub unix_s: u64,
    /// Version of stratann.
    pub version: String,
}

impl Measurement {
    fn now() -> Measurement {
        let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Measurement { unix_s, version: env!("CARGO_PKG_VERSION").into() }
    }
}

/// Constants of the model of OrchANN (§5.1, "Latency Prediction") that are fitted. There N is the number of vectors in
/// a cluster, d their dimension, Tr(B) the time to stream B bytes, Rd(B) that of random reads of B bytes, C_vec the
/// cost of a distance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LocalCosts {
    /// α_flat of a scan: T(N) = Tr(4 N d) + α_flat · N · C_vec.
    pub alpha_flat: f64,
    /// a of the hops of a graph, H(N) = max(1, a · ln N + b): T(N) = H(N) · (Rd(B_node) + deg · C_vec).
    pub hops_a: f64,
    /// b of the same.
    pub hops_b: f64,
    /// β_scan of an inverted file: bytes that are read of its lists over bytes that are wanted.
    pub beta_scan: f64,
    /// a of the lists that a divided cluster's scan takes at equal local recall, nprobe(N) = max(1, a · ln N + b).
    pub lists_a: f64,
    /// b of the same.
    pub lists_b: f64,
}

/// Options of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct ProfileOptions {
    /// Seconds of the whole measurement, about; on a disk that is slow to write a little more.
    pub seconds: f64,
    /// Length of the scratch file, at most; a quarter of what is free, where that is less.
    pub scratch_bytes: u64,
    /// Way to read.
    pub io: IoChoice,
}

impl Default for ProfileOptions {
    fn default() -> ProfileOptions {
        ProfileOptions { seconds: 30.0, scratch_bytes: 1 << 30, io: IoChoice::Auto }
    }
}

/// The least scratch file that says anything.
pub const SCRATCH_BYTES_MIN: u64 = 4 << 20;
/// The longest time that can be asked for.
pub const SECONDS_MAX: f64 = 600.0;
/// Shares of the time; the rest is for steps of unbounded length.
const WRITE_SHARE: f64 = 0.25;
const DISK_SHARE: f64 = 0.55;
const COMPUTE_SHARE: f64 = 0.15;

impl Profile {
    /// Measures the disk that holds `folder`, and this machine's distances. A scratch file in `folder` is gone
    /// afterwards, however this ends.
    ///
    /// # Errors
    /// Options out of range; a folder that cannot be written to, or with too little room; reads that fail;
    /// `ErrorKind::Interrupted`.
    pub fn measure(folder: &Path, options: &ProfileOptions, progress: &dyn Progress) -> Result<Profile> {
        let started = Instant::now();
        let bytes = scratch_bytes(folder, options)?;
        let part = |share: f64| Duration::from_secs_f64(share * options.seconds);
        let scratch = ScratchFile::create(folder, bytes, part(WRITE_SHARE), progress)?;
        let (disk, io_backend) = disk::measure(&scratch, options.io, part(DISK_SHARE), progress)?;
        drop(scratch);
        let compute = compute::measure(part(COMPUTE_SHARE), progress)?;
        Ok(Profile {
            format_version: FORMAT_VERSION,
            origin: Origin::here(folder, io_backend),
            seconds: started.elapsed().as_secs_f64(),
            measurement: Some(Measurement::now()),
            disk,
            compute,
            local: None,
        })
    }

    /// Reason why this profile says little about searches on the disk of `folder`, here; `None` when it is from this
    /// machine and that disk.
    pub fn differs_from_here(&self, folder: &Path) -> Option<String> {
        self.origin.differences(&Origin::of_searches(folder))
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// A file that is not there, is no profile, is damaged, or is of a newer format.
    pub fn read(path: &Path) -> Result<Profile> {
        let mut document = document(path)?;
        let damaged = |why: &str| {
            Error::corrupt(format!(
                "{} is damaged ({why}); measure again with `stratann profile`",
                path.display()
            ))
        };
        if document["format"] != FORMAT {
            return Err(Error::bad_input(format!(
                "{} is no profile; make one with `stratann profile`",
                path.display()
            )));
        }
        let version = document["format_version"].as_u64().ok_or_else(|| damaged("no format_version"))?;
        if version > u64::from(FORMAT_VERSION) {
            return Err(Error::bad_input(format!(
                "{} has format version {version}, this program reads up to {FORMAT_VERSION}; use a newer stratann",
                path.display()
            )));
        }
        if !unseal(&mut document) {
            return Err(damaged("its checksum does not match"));
        }
        let profile: Profile = serde_json::from_value(document).map_err(|e| damaged(&e.to_string()))?;
        if !profile.disk.is_consistent() || !profile.compute.is_consistent() {
            return Err(damaged("a cost is not above 0"));
        }
        Ok(profile)
    }

    /// Writes the profile atomically. With `force`, another profile is replaced, and no other file.
    ///
    /// # Errors
    /// See [`may_write`]; and when the file cannot be written.
    pub fn write(&self, output: &OutputPath) -> Result<()> {
        may_write(output)?;
        output.write(self.text()?.as_bytes())
    }

    /// The content of its file.
    fn text(&self) -> Result<String> {
        let wrong = |e: serde_json::Error| Error::bad_input(format!("profile: {e}"));
        let mut document = serde_json::to_value(self).map_err(wrong)?;
        document["format"] = FORMAT.into();
        seal(&mut document);
        Ok(serde_json::to_string_pretty(&document).map_err(wrong)? + "\n")
    }
}

/// Refuses to replace a file that is not a profile; a damaged profile is one.
///
/// # Errors
/// `BadInput` when another file exists at the path.
pub fn may_write(output: &OutputPath) -> Result<()> {
    let path = output.path();
    if !output.replaces() || document(path).is_ok_and(|d| d["format"] == FORMAT) {
        return Ok(());
    }
    Err(Error::bad_input(format!(
        "{} exists and is no profile; give another name with -o, or remove it",
        path.display()
    )))
}

/// Longer files are no profiles.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The JSON in a file.
fn document(path: &Path) -> Result<serde_json::Value> {
    let failed = |e: std::io::Error| Error::io("reading", path, &e);
    let about = std::fs::metadata(path).map_err(failed)?;
    if !about.is_file() || about.len() > FILE_BYTES_MAX {
        let message = format!("{} is no profile; make one with `stratann profile`", path.display());
        return Err(Error::bad_input(message));
    }
    let bytes = crate::input::read(path)?;
    serde_json::from_slice(&bytes).map_err(|e| {
        Error::corrupt(format!(
            "{} is no profile, or is damaged ({e}); measure again with `stratann profile`",
            path.display()
        ))
    })
}

fn scratch_bytes(folder: &Path, options: &ProfileOptions) -> Result<u64> {
    if !(options.seconds > 0.0 && options.seconds <= SECONDS_MAX) {
        return Err(Error::bad_input(format!("{} seconds; give 0 to {SECONDS_MAX}", options.seconds)));
    }
    if options.scratch_bytes < SCRATCH_BYTES_MIN {
        return Err(Error::bad_input(format!(
            "a scratch file of {} says nothing; give {} or more",
            size(options.scratch_bytes),
            size(SCRATCH_BYTES_MIN)
        )));
    }
    let free = free_disk_bytes(folder).unwrap_or(u64::MAX);
    if free / 4 < SCRATCH_BYTES_MIN {
        return Err(Error::bad_input(format!(
            "{}: {} are free, a scratch file needs {}; free some space, or name a folder on another disk",
            folder.display(),
            size(free),
            size(4 * SCRATCH_BYTES_MIN)
        )));
    }
    Ok(options.scratch_bytes.min(free / 4))
}

#[cfg(test)]
mod tests;
