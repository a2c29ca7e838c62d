//! Origin of a profile, to detect its use on another machine.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::tier;

/// The machine and the disk that were measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Model of the processor.
    pub cpu: String,
    /// Cores available to the process.
    pub cores: usize,
    /// Instruction set of the kernels.
    pub isa: String,
    /// Kind of the file system, such as `ext4`.
    pub file_system: String,
    /// Mounted device, such as `/dev/nvme0n1p2`.
    pub device: String,
    /// I/O back end of the reads: `io_uring` or `pread`.
    pub io_backend: String,
}

const UNKNOWN: &str = "unknown";

impl Origin {
    /// This machine, and the disk that holds `folder`, with this back end.
    pub(super) fn here(folder: &Path, io_backend: &str) -> Origin {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
        let mount = mount_of(&text("/proc/self/mountinfo"), &folder);
        let (file_system, device) = mount.unwrap_or_else(|| (UNKNOWN.into(), UNKNOWN.into()));
        Origin {
            cpu: cpu_model(&text("/proc/cpuinfo")).unwrap_or_else(|| std::env::consts::ARCH.into()),
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            isa: stratann_kernel::isa::current().name().into(),
            file_system,
            device,
            io_backend: io_backend.into(),
        }
    }

    /// Origin of a search on the disk of `folder` on this machine.
    pub(super) fn of_searches(folder: &Path) -> Origin {
        Origin::here(folder, if tier::uring_refusal().is_none() { "io_uring" } else { "pread" })
    }

    /// Describes the differences to `here`.
    pub(super) fn differences(&self, here: &Origin) -> Option<String> {
        let disk = |o: &Origin| format!("{} on {}", o.file_system, o.device);
        let facts = [
            ("the processor", self.cpu.clone(), here.cpu.clone()),
            ("the number of cores", self.cores.to_string(), here.cores.to_string()),
            ("the instruction set", self.isa.clone(), here.isa.clone()),
            ("the disk", disk(self), disk(here)),
            ("the way of reading", self.io_backend.clone(), here.io_backend.clone()),
        ];
        let different = facts.iter().filter(|(_, then, now)| then != now);
        let words: Vec<String> =
            different.map(|(what, then, now)| format!("{what} was {then}, here it is {now}")).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }
}

/// Serial number, or another lasting identity, of the disk that holds `folder`; partitions of a disk share it. `None`
/// where the kernel knows none: network and layered file systems, some virtual disks.
pub(super) fn disk_identity(folder: &Path) -> Option<String> {
    let at = |device: u64| {
        let numbers = format!("{}:{}", libc::major(device), libc::minor(device));
        let block = Path::new("/sys/dev/block").join(numbers).canonicalize().ok()?;
        let is_partition = block.join("partition").exists();
        identity_of_block(if is_partition { block.parent()? } else { &block })
    };
    // Some file systems have a device number of their own; the mounted device has that of the disk.
    let mounted = || std::fs::metadata(Origin::of_searches(folder).device).ok();
    at(std::fs::metadata(folder).ok()?.dev()).or_else(|| at(mounted()?.rdev()))
}

/// Identity that the kernel gives for a block device.
fn identity_of_block(block: &Path) -> Option<String> {
    let names = ["dm/uuid", "md/uuid", "wwid", "device/wwid", "serial", "device/serial"];
    let texts = names.iter().filter_map(|name| std::fs::read_to_string(block.join(name)).ok());
    texts.map(|text| text.trim().to_string()).find(|text| !text.is_empty())
}

/// On x86 the kernel gives a name; on Arm the numbers of implementer and part.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let field = |name: &str| {
        let value = cpuinfo.lines().find_map(|l| l.strip_prefix(name)?.trim_start().strip_prefix(':'));
        value.map(|v| v.trim().to_string()).filter(|v| !v.is_empty())
    };
    field("model name").or_else(|| {
        Some(format!("Arm implementer {} part {}", field("CPU implementer")?, field("CPU part")?))
    })
}

/// Type and source of the file system that holds `path`, by the longest mount point; of several on one, the last one
/// counts.
fn mount_of(mountinfo: &str, path: &Path) -> Option<(String, String)> {
    let mut best: Option<(usize, &str, &str)> = None;
    for line in mountinfo.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (Some(point), Some((kind, rest))) = (before.split(' ').nth(4), after.split_once(' ')) else {
            continue;
        };
        let point = unescaped(point);
        if path.starts_with(&point) && best.is_none_or(|b| b.0 <= point.len()) {
            best = Some((point.len(), kind, rest.split(' ').next().unwrap_or(UNKNOWN)));
        }
    }
    best.map(|(_, kind, source)| (kind.into(), unescaped(source)))
}

/// Decodes the kernel's escapes of spaces, tabs, newlines and backslashes such as `\040`.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_string(), |t, (from, to)| t.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_the_kernels_words() {
        let x86 = "processor\t: 0\nmodel name\t: A Processor 9000\nmodel\t\t: 17\n";
        assert_eq!(cpu_model(x86).as_deref(), Some("A Processor 9000"));
        let arm = "CPU implementer\t: 0x41\nCPU part\t: 0xd40\n";
        assert_eq!(cpu_model(arm).as_deref(), Some("Arm implementer 0x41 part 0xd40"));
        assert_eq!(cpu_model(""), None);
        let mounts = "\
22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw
40 22 0:45 / /data rw - xfs /dev/nvme0n1 rw
41 22 0:46 / /data\\040two rw - tmpfs tmpfs rw
42 22 0:47 / /data rw - btrfs /dev/nvme1n1 rw
broken line
";
        let mount = |path: &str| mount_of(mounts, Path::new(path)).unwrap();
        assert_eq!(mount("/home/x"), ("ext4".into(), "/dev/sda2".into()));
        assert_eq!(mount("/data/x"), ("btrfs".into(), "/dev/nvme1n1".into()));
        assert_eq!(mount("/data two"), ("tmpfs".into(), "tmpfs".into()));
        assert_eq!(mount("/database").0, "ext4");
        assert_eq!(mount_of("", Path::new("/")), None);
    }

    #[test]
    fn a_disk_is_known_by_what_lasts() {
        let block = tempfile::tempdir().unwrap();
        assert_eq!(identity_of_block(block.path()), None);
        std::fs::write(block.path().join("serial"), "  S123 \n").unwrap();
        assert_eq!(identity_of_block(block.path()).as_deref(), Some("S123"));
        std::fs::write(block.path().join("wwid"), "\n").unwrap();
        assert_eq!(identity_of_block(block.path()).as_deref(), Some("S123"), "an empty one does not count");
        std::fs::write(block.path().join("wwid"), "eui.1\n").unwrap();
        assert_eq!(identity_of_block(block.path()).as_deref(), Some("eui.1"));
    }

    #[test]
    fn another_machine_is_told_in_words() {
        let here = Origin::of_searches(Path::new("."));
        assert_eq!(here.differences(&here), None);
        let there = Origin { cpu: "another".into(), device: "/dev/sdz".into(), ..here.clone() };
        let words = there.differences(&here).unwrap();
        assert!(words.contains("the processor was another, here it is"), "{words}");
        assert!(words.contains("on /dev/sdz") && !words.contains("cores"), "{words}");
    }
}
