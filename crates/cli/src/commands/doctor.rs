//! `stratann doctor`: shows what this machine supports.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use stratann_engine::doctor::{self, Disk, Gpu, LinkListener, LinkSpeed, Machine};
use stratann_params::measure::DoctorSettings;
use stratann_params::search::SearchSettings;
use stratann_params::{Place, Stage};
use stratann_storage::Result;
use stratann_storage::budget::{free_disk_bytes, size};
use stratann_storage::profile::{KeptProfile, Measurement};
use stratann_storage::tier::IoChoice;

use super::profile::measured_words;
use crate::Verdict;
use crate::output::{Output, count, eprint_line};
use crate::parameters::{Parameters, Rows};

/// Show what this machine supports: processor, memory, limits, io_uring and disk speed
///
/// The disk is probed for about a second with a temporary file of 64 MiB in the folder of --path. With --link the
/// network to another host is measured, too, where `stratann doctor --link-listen` runs meanwhile.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    table: Parameters<DoctorRows>,
}

/// The table's options of an examination.
struct DoctorRows;

impl Rows for DoctorRows {
    const STAGES: &'static [Stage] = &[Stage::Doctor];
}

const EXAMPLES: &str = "\
Examples:
  stratann doctor --path /data
  stratann doctor --link-listen 10.0.0.2:7799             # on one host
  stratann doctor --link 10.0.0.2:7799 --json > net.json  # on another
  stratann simulate base.idx query.fbin --servers 4 --link net.json";

#[derive(Serialize)]
struct Document {
    version: &'static str,
    #[serde(flatten)]
    machine: Machine,
    disk: Option<Disk>,
    disk_free_bytes: Option<u64>,
    disk_error: Option<String>,
    profile: KeptFacts,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<LinkSpeed>,
}

/// The profile that builds on the disk use.
#[derive(Serialize)]
struct KeptFacts {
    file: Option<PathBuf>,
    /// Time of the measurement; `None` where none is kept.
    measurement: Option<Measurement>,
    /// Why the next build measures although there is a file, or cannot keep what it measures.
    error: Option<String>,
}

impl KeptFacts {
    fn of_disk(folder: &Path) -> KeptFacts {
        let kept = KeptProfile::of_disk(folder);
        let found =
            kept.as_ref().map_err(|e| e.message.clone()).and_then(|k| k.read().map_err(|e| e.message));
        let (measurement, error) = match found {
            Ok(profile) => (profile.and_then(|p| p.measurement), None),
            Err(why) => (None, Some(why)),
        };
        KeptFacts { file: kept.ok().map(|k| k.path), measurement, error }
    }
}

/// Runs `stratann doctor`.
pub(crate) fn run(args: &Args, output: Output) -> Result<Verdict> {
    args.table.check(None, Place::Folder)?;
    let (settings, reads): (DoctorSettings, SearchSettings) =
        (args.table.given.read(), args.table.given.read());
    if let Some(address) = &settings.link_listen {
        return listen(address, output);
    }
    let path = &settings.path;
    let link = settings.link.as_deref().map(doctor::measure_link).transpose()?;
    let io: IoChoice = reads.io.into();
    let (disk, disk_error) = match doctor::probe_disk(path, io) {
        Ok(disk) => (Some(disk), None),
        Err(e) => (None, Some(e.message)),
    };
    let document = Document {
        version: env!("CARGO_PKG_VERSION"),
        machine: doctor::machine(),
        disk,
        disk_free_bytes: free_disk_bytes(path),
        disk_error,
        profile: KeptFacts::of_disk(path),
        link,
    };
    output.result(&document, || text(path, &document))?;
    Ok(if document.disk.is_some() { Verdict::Fine } else { Verdict::Failed })
}

/// Serves one measurement of the link.
fn listen(address: &str, output: Output) -> Result<Verdict> {
    let listener = LinkListener::bind(address)?;
    let taken = listener.address().map_or(address.to_string(), |address| address.to_string());
    eprint_line(&format!("listening on {taken} for `stratann doctor --link`; Ctrl-C ends"));
    let (peer, served) = listener.serve_one(&|line| output.note(&format!("note: {line}")))?;
    let document = serde_json::json!({ "listened": { "address": taken, "peer": peer, "served": served } });
    output.result(&document, || {
        format!("{peer} measured: {} messages, {} of bulk\n", count(served.messages), size(served.bulk_bytes))
    })?;
    Ok(Verdict::Fine)
}

fn text(path: &Path, document: &Document) -> String {
    let m = &document.machine;
    let have: Vec<&str> = m.cpu_features.iter().filter(|f| *f.1).map(|f| f.0.as_str()).collect();
    let lack: Vec<&str> = m.cpu_features.iter().filter(|f| !*f.1).map(|f| f.0.as_str()).collect();
    let bytes = |b: Option<u64>| b.map_or("unknown".to_string(), size);
    let limit = |b: Option<u64>| b.map_or("no limit".to_string(), size);
    let mut out = format!("stratann {}\n", document.version);
    out += &format!("processor    {} cores, kernels for {}; has {}", m.cores, m.isa, have.join(" "));
    out += &if lack.is_empty() { "\n".into() } else { format!("; lacks {}\n", lack.join(" ")) };
    out += &format!(
        "memory       {}, {} available; control group: {}\n",
        bytes(m.memory_bytes),
        bytes(m.memory_available_bytes),
        limit(m.cgroup_limit_bytes)
    );
    out += &format!(
        "limits       locked memory {}, open files {}\n",
        limit(m.memlock_bytes),
        m.open_files.map_or("no limit".into(), count)
    );
    if let Some(why) = &m.memory_groups_refusal {
        out += &format!("groups       memory control groups cannot be made ({why}); only tests need them\n");
    }
    out += &match &m.io_uring_refusal {
        None => "io_uring     works\n".to_string(),
        Some(why) => format!("io_uring     refused ({why}); reads use pread threads instead\n"),
    };
    out += &match (&document.disk, &document.disk_error) {
        (Some(disk), _) => disk_line(path, disk, document.disk_free_bytes),
        (None, error) => format!("disk         {}\n", error.as_deref().unwrap_or("not probed")),
    };
    out += &profile_line(&document.profile);
    if let Some(link) = &document.link {
        out += &format!(
            "link         {}: {:.1} us one way (median), {:.1} us (99 %), {:.2} Gbit/s over one connection\n",
            link.host, link.latency_us, link.p99_us, link.gbps
        );
    }
    let present = |n: usize| if n == 0 { "none".to_string() } else { format!("{n} present") };
    out += &gpu_lines(&m.gpu);
    for (line, back_end) in m.remote_memory.iter().enumerate() {
        let heading = if line == 0 { "memory nodes" } else { "" };
        let state = match (&back_end.works, &back_end.refusal) {
            (Some(works), _) => format!("works: {works}"),
            (None, why) => format!("cannot be used: {}", why.as_deref().unwrap_or("unknown")),
        };
        out += &format!("{heading:<12} {} {state}\n", back_end.name);
    }
    let rdma =
        if m.rdma_devices == 0 { "ucx uses other transports" } else { "memory nodes can use them by ucx" };
    out + &format!("RDMA         {}; {rdma}\n", present(m.rdma_devices))
}

fn gpu_lines(gpu: &Gpu) -> String {
    let version = |what: &str, version: &Option<String>| match version {
        Some(version) => format!("{what} {version}"),
        None => format!("no {what}"),
    };
    let mut out = format!(
        "GPU          {}, {}; {}\n",
        version("CUDA driver", &gpu.driver),
        version("NVRTC", &gpu.nvrtc),
        if gpu.missing.is_empty() { "gpu-ivf can use it" } else { "gpu-ivf ranks codes with the processor" }
    );
    for device in &gpu.devices {
        out += &format!(
            "             {}: {}, compute capability {}, {} of {} free\n",
            device.number,
            device.name,
            device.compute_capability,
            size(device.memory_free_bytes),
            size(device.memory_bytes)
        );
    }
    gpu.missing.iter().for_each(|why| out += &format!("             {why}\n"));
    out
}

fn profile_line(kept: &KeptFacts) -> String {
    let state = match (kept, &kept.file) {
        (KeptFacts { error: Some(why), .. }, _) => {
            format!("{why}; a build of a hybrid-ivf measures the disk")
        }
        (KeptFacts { measurement: Some(m), .. }, Some(file)) => {
            format!("measured {}, kept in {}", age(m), file.display())
        }
        _ => "none is kept for this disk; the first build of a hybrid-ivf measures one".into(),
    };
    format!("profile      {state}\n")
}

/// A date, and how long ago that is.
fn age(m: &Measurement) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    match now.saturating_sub(m.unix_s) / 86_400 {
        0 => format!("{} (today)", measured_words(m)),
        days => format!("{} ({days} days ago)", measured_words(m)),
    }
}

fn disk_line(path: &Path, disk: &Disk, free: Option<u64>) -> String {
    let how = if disk.direct {
        "O_DIRECT works"
    } else {
        "O_DIRECT is refused: these figures are those of the page cache"
    };
    format!(
        "disk         {}: {} random 4 KiB reads/s at depth {} ({}), {:.0} us for a single read, \
         {:.0} MB/s by large reads; {how}; {} free\n",
        path.display(),
        count(disk.iops as u64),
        doctor::DEPTH,
        disk.io_backend,
        disk.latency_us,
        disk.large_bytes_per_s / 1e6,
        free.map_or("unknown".into(), size)
    )
}
