//! Report on this machine: facts for a person, and short probes of a disk and of the network to another host.

mod network;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use stratann_core::PAGE;
use stratann_storage::profile::{Order, Reading, ScratchFile, time_reads};
use stratann_storage::remote_memory::BackEnd;
use stratann_storage::tier::{self, IoChoice};
use stratann_storage::{Quiet, Result};

use crate::parallel;

pub use self::network::{LinkListener, LinkSpeed, Served, measure_link};

/// Cores and memory.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Instruction set that the kernels use.
    pub isa: String,
    /// Processor features that the kernels know of, and whether they are here.
    pub cpu_features: BTreeMap<String, bool>,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory of the machine.
    pub memory_bytes: Option<u64>,
    /// The part of the memory that can be had without swapping.
    pub memory_available_bytes: Option<u64>,
    /// The limit of this process' control group; `None` for no limit.
    pub cgroup_limit_bytes: Option<u64>,
    /// Reason why this process cannot make memory control groups; `None` when it can.
    pub memory_groups_refusal: Option<String>,
    /// Memory that may be locked; `None` for no limit.
    pub memlock_bytes: Option<u64>,
    /// Files that may be open at once; `None` for no limit.
    pub open_files: Option<u64>,
    /// Parts that a `gpu-ivf` can use.
    pub gpu: Gpu,
    /// NVIDIA devices that the kernel lists.
    pub gpus: usize,
    /// RDMA devices that are visible. The ucx back end uses them.
    pub rdma_devices: usize,
    /// Back ends of remote memory.
    pub remote_memory: Vec<BackEnd>,
    /// Reason why io_uring cannot be used; `None` when it can.
    pub io_uring_refusal: Option<String>,
}

/// Parts that a GPU needs to be used, and the GPUs that there are.
#[derive(Clone, Debug, Serialize)]
pub struct Gpu {
    /// The newest version of CUDA that the driver runs.
    pub driver: Option<String>,
    /// Version of the library that compiles kernels.
    pub nvrtc: Option<String>,
    /// The devices.
    pub devices: Vec<GpuDevice>,
    /// Missing parts, and their remedies; empty where a GPU can be used.
    pub missing: Vec<String>,
}

/// A GPU.
#[derive(Clone, Debug, Serialize)]
pub struct GpuDevice {
    /// For `--device`.
    pub number: u32,
    /// Product.
    pub name: String,
    /// Compute capability.
    pub compute_capability: String,
    /// Memory.
    pub memory_bytes: u64,
    /// The part of the memory that is free.
    pub memory_free_bytes: u64,
}

impl Gpu {
    fn find() -> Gpu {
        let found = crate::exec::scorer::probe();
        let mut missing: Vec<String> = Vec::new();
        let mut known = |part: std::result::Result<String, String>| match part {
            Ok(text) => Some(text),
            Err(why) => {
                if !missing.contains(&why) {
                    missing.push(why);
                }
                None
            }
        };
        let text = |part: &std::result::Result<_, _>| match part {
            Ok(version) => Ok(format!("{version}")),
            Err(e) => Err(format!("{e}")),
        };
        let (driver, nvrtc) = (known(text(&found.driver)), known(text(&found.nvrtc)));
        let listed = found.devices.map_err(|e| e.to_string());
        known(listed.as_ref().map(|_| String::new()).map_err(String::clone));
        let devices: Vec<GpuDevice> = listed
            .unwrap_or_default()
            .into_iter()
            .map(|device| GpuDevice {
                number: device.number,
                name: device.name,
                compute_capability: format!(
                    "{}.{}",
                    device.compute_capability.0, device.compute_capability.1
                ),
                memory_bytes: device.memory_bytes,
                memory_free_bytes: device.memory_free_bytes,
            })
            .collect();
        if devices.is_empty() && missing.is_empty() {
            missing.push("the driver lists no GPU; see `nvidia-smi`".into());
        }
        Gpu { driver, nvrtc, devices, missing }
    }
}

/// Looks around.
pub fn machine() -> Machine {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    Machine {
        isa: stratann_kernel::isa::current().name().into(),
        cpu_features: cpu_features(),
        cores: parallel::cores(),
        memory_bytes: meminfo_bytes(&meminfo, "MemTotal:"),
        memory_available_bytes: meminfo_bytes(&meminfo, "MemAvailable:"),
        cgroup_limit_bytes: cgroup_limit(),
        memory_groups_refusal: memory_groups_refusal(),
        memlock_bytes: limit(&limits, "Max locked memory"),
        open_files: limit(&limits, "Max open files"),
        gpu: Gpu::find(),
        gpus: entries("/proc/driver/nvidia/gpus"),
        rdma_devices: entries("/sys/class/infiniband"),
        remote_memory: stratann_storage::remote_memory::back_ends(),
        io_uring_refusal: tier::uring_refusal(),
    }
}

/// Memory that this process may still take: what the system has available, and its control group allows.
pub fn available_memory_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let own = stratann_storage::budget::process().peak_rss_bytes;
    let of_group = cgroup_limit().map(|limit| limit.saturating_sub(own));
    [meminfo_bytes(&meminfo, "MemAvailable:"), of_group].into_iter().flatten().min()
}

fn cpu_features() -> BTreeMap<String, bool> {
    let mut all = BTreeMap::new();
    #[cfg(target_arch = "x86_64")]
    {
        all.insert("avx2".to_string(), std::is_x86_feature_detected!("avx2"));
        all.insert("fma".to_string(), std::is_x86_feature_detected!("fma"));
        all.insert("f16c".to_string(), std::is_x86_feature_detected!("f16c"));
        all.insert("avx512f".to_string(), std::is_x86_feature_detected!("avx512f"));
        all.insert("avx512bw".to_string(), std::is_x86_feature_detected!("avx512bw"));
        all.insert("avx512vnni".to_string(), std::is_x86_feature_detected!("avx512vnni"));
    }
    #[cfg(target_arch = "aarch64")]
    all.insert("neon".to_string(), true);
    all
}

fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix(field))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The soft limit of a line in `/proc/self/limits`.
fn limit(limits: &str, name: &str) -> Option<u64> {
    limits.lines().find_map(|l| l.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).map_or(0, |entries| entries.flatten().count())
}

/// The smallest memory limit on the way up from this process' control group, version 2 or 1.
fn cgroup_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut smallest: Option<u64> = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            c if c.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        for group in Path::new(path).ancestors() {
            let inside = group.strip_prefix("/").unwrap_or(group);
            let text = std::fs::read_to_string(Path::new(root).join(inside).join(file)).unwrap_or_default();
            // Version 1 says "no limit" with a number near the largest.
            let bytes = text.trim().parse::<u64>().ok().filter(|&b| b < 1 << 60);
            smallest = [smallest, bytes].into_iter().flatten().min();
        }
    }
    smallest
}

/// Makes a memory control group and removes it; the reason when it cannot.
fn memory_groups_refusal() -> Option<String> {
    let mut why = "there is no memory controller".to_string();
    for (root, controlled, limit) in [
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "cgroup.controllers", "memory.max"),
    ] {
        if !Path::new(root).join(controlled).exists() {
            continue;
        }
        let group = Path::new(root).join(format!("stratann-doctor-{}", std::process::id()));
        match std::fs::create_dir(&group) {
            Err(e) => why = format!("{}: {e}", group.display()),
            Ok(()) => {
                let is_limited = group.join(limit).exists();
                // An empty group can be removed by whoever made it.
                let _ = std::fs::remove_dir(&group);
                if is_limited {
                    return None;
                }
                why = format!("{root} controls no memory");
            }
        }
    }
    Some(why)
}

/// Speed of a disk in a second or so.
#[derive(Clone, Debug, Serialize)]
pub struct Disk {
    /// Random reads of 4 KiB per second, [`DEPTH`] under way.
    pub iops: f64,
    /// Mean latency of one such read alone, microseconds.
    pub latency_us: f64,
    /// Bytes per second of random reads of 256 KiB, [`LARGE_DEPTH`] under way.
    pub large_bytes_per_s: f64,
    /// Whether the file system allows reads past the page cache; without, the numbers above are those of memory.
    pub direct: bool,
    /// Way in which blocks were read: `io_uring` or `pread`.
    pub io_backend: String,
}

/// Reads under way in the throughput part of the probe.
pub const DEPTH: usize = 128;
/// Large reads: their length, and those under way.
const LARGE_BYTES: u32 = 256 << 10;
const LARGE_DEPTH: usize = 32;
const FILE_BYTES: u64 = 64 << 20;
/// Longer than any disk needs to write that.
const WRITE_TIME: Duration = Duration::from_secs(60);
const THROUGHPUT_TIME: Duration = Duration::from_millis(600);
const LATENCY_TIME: Duration = Duration::from_millis(300);
const LARGE_TIME: Duration = Duration::from_millis(400);

impl Disk {
    /// Bytes per second beyond the first page of each read, if a read takes its share of the operations and then of
    /// the bytes: what large reads take longer than small ones.
    pub fn transfer_bytes_per_s(&self) -> f64 {
        let large_s = f64::from(LARGE_BYTES) / self.large_bytes_per_s;
        let beyond_s = large_s - 1.0 / self.iops;
        // Where large reads are no slower than small ones, only their bytes are known to have arrived.
        if beyond_s > 0.0 { f64::from(LARGE_BYTES - PAGE as u32) / beyond_s } else { self.large_bytes_per_s }
    }
}

/// Probes the disk that holds `folder` with a temporary file of 64 MiB, which is gone afterwards.
///
/// # Errors
/// When the file cannot be written or read.
pub fn probe_disk(folder: &Path, io: IoChoice) -> Result<Disk> {
    let scratch = ScratchFile::create(folder, FILE_BYTES, WRITE_TIME, &Quiet)?;
    let time = |bytes: u32, depth: usize, time| {
        let reading = Reading { bytes, depth: depth as u32, order: Order::Random };
        time_reads(&scratch, reading, 0, io, time, &Quiet)
    };
    let page = PAGE as u32;
    let (deep, alone) = (time(page, DEPTH, THROUGHPUT_TIME)?, time(page, 1, LATENCY_TIME)?);
    let large = time(LARGE_BYTES, LARGE_DEPTH, LARGE_TIME)?;
    Ok(Disk {
        iops: deep.reads.per_second,
        latency_us: alone.reads.mean_us,
        large_bytes_per_s: large.reads.per_second * f64::from(LARGE_BYTES),
        direct: scratch.direct,
        io_backend: deep.io_backend.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_the_kernels_words() {
        assert_eq!(
            meminfo_bytes("MemTotal:       1024 kB\nMemAvailable: 512 kB\n", "MemAvailable:"),
            Some(512 << 10)
        );
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024  4096  files\n\
                      Max locked memory  unlimited unlimited bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024));
        assert_eq!(limit(limits, "Max locked memory"), None);
    }

    #[test]
    fn a_probe_reads_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let disk = probe_disk(dir.path(), IoChoice::Pread).unwrap();
        assert!(disk.iops > 1.0 && disk.latency_us > 0.0 && disk.io_backend == "pread");
        assert!(disk.large_bytes_per_s > 1.0 && disk.transfer_bytes_per_s() > 1.0, "{disk:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_large_read_is_operations_and_bytes() {
        let disk = |iops, large_bytes_per_s| Disk {
            iops,
            latency_us: 80.0,
            large_bytes_per_s,
            direct: true,
            io_backend: "pread".into(),
        };
        // 20 us for a page, and 1 GB/s for the rest of 256 KiB.
        let large_s = 20e-6 + f64::from(LARGE_BYTES - 4096) / 1e9;
        let found = disk(50_000.0, f64::from(LARGE_BYTES) / large_s).transfer_bytes_per_s();
        assert!((found / 1e9 - 1.0).abs() < 1e-9, "{found}");
        assert_eq!(disk(100.0, 5e9).transfer_bytes_per_s(), 5e9);
    }
}
