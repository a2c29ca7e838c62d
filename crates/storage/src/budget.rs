//! Memory accounting, budgets, and figures of the kernel.

use std::borrow::Cow;

use serde::Serialize;

use crate::{Error, Result};

/// Bytes by component. The sum is computed from allocations, not read from the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    /// Component and its bytes.
    pub components: Vec<(Cow<'static, str>, u64)>,
}

/// The program itself: loaded code and constants, the main stack, the table of commands, state of the allocator. Of its
/// file 7 to 11 MiB were seen in memory, as [`release_freed`] lets go of what ran earlier; 3 MiB are written to, of
/// which half are addresses that are filled in when it starts.
pub const PROGRAM_BYTES: u64 = 15 << 20;
/// Used part of a worker thread's stack and thread-local state.
pub const THREAD_BYTES: u64 = 128 << 10;
/// Used part of the stack of a thread that reads blocks, and its share of the allocator.
pub const READER_BYTES: u64 = 48 << 10;

impl Account {
    /// Creates an account with the program only.
    pub fn new() -> Account {
        Account { components: vec![("program".into(), PROGRAM_BYTES)] }
    }

    /// Adds a component.
    pub fn add(&mut self, what: impl Into<Cow<'static, str>>, bytes: u64) {
        self.components.push((what.into(), bytes));
    }

    /// Adds the components of another index in the same process.
    pub fn join(&mut self, other: &Account) {
        for (what, bytes) in other.components.iter().filter(|component| component.0 != "program") {
            match self.components.iter_mut().find(|component| component.0 == *what) {
                Some(known) => known.1 = known.1.saturating_add(*bytes),
                None => self.add(what.clone(), *bytes),
            }
        }
    }

    /// Bytes of one component; 0 where it is missing.
    pub fn bytes_of(&self, what: &str) -> u64 {
        self.components.iter().filter(|component| component.0 == what).map(|component| component.1).sum()
    }

    /// Sum of all components.
    pub fn total(&self) -> u64 {
        self.components.iter().fold(0, |sum, c| sum.saturating_add(c.1))
    }

    /// Refuses a budget that this account exceeds; the error names the smallest that works.
    ///
    /// # Errors
    /// `ErrorKind::Budget`.
    pub fn check(&self, budget: Option<u64>, job: &str) -> Result<()> {
        let Some(budget) = budget else { return Ok(()) };
        if self.total() <= budget {
            return Ok(());
        }
        let largest = self.components.iter().max_by_key(|c| c.1);
        let largest = largest.map(|c| format!(", most of it {} ({})", c.0, size(c.1))).unwrap_or_default();
        Err(Error::budget(format!(
            "a RAM budget of {} is too small to {job}: it takes {}{largest}; give --ram-budget {} or more",
            size(budget),
            size(self.total()),
            size_up(self.total())
        )))
    }
}

/// Formats bytes: `1.5 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats bytes as the value of an option, rounded up: `37MiB`.
pub fn size_up(bytes: u64) -> String {
    format!("{}MiB", bytes.div_ceil(1 << 20))
}

/// Figures of the kernel about this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process {
    /// Processor time, user and system, microseconds.
    pub cpu_us: u64,
    /// Largest resident set so far, bytes.
    pub peak_rss_bytes: u64,
}

/// Reads them from the kernel. It takes some tens of microseconds; [`cpu_us`] takes one.
pub fn process() -> Process {
    let Some(usage) = usage() else { return Process::default() };
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    Process { cpu_us: us_of(&usage), peak_rss_bytes: peak_rss().unwrap_or(usage.ru_maxrss as u64 * unit) }
}

/// Processor time of this process, user and system, microseconds.
pub fn cpu_us() -> u64 {
    usage().map_or(0, |usage| us_of(&usage))
}

/// Processor time of this thread, nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    if result == 0 { time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 } else { 0 }
}

fn usage() -> Option<libc::rusage> {
    // SAFETY: rusage is plain data, for which all zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live rusage.
    let result = unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    (result == 0).then_some(usage)
}

fn us_of(usage: &libc::rusage) -> u64 {
    let us = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

/// ru_maxrss survives exec, so it may be that of the parent; VmHWM is that of this program.
fn peak_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Returns freed memory to the kernel, so that one stage of a long job does not hold the memory of an earlier one, and
/// with it the pages of the program that the stage ran.
pub fn release_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
    release_program();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
unsafe extern "C" {
    /// The header of the program or library that this is linked into, as the linker places it.
    static __ehdr_start: libc::Elf64_Ehdr;
}

/// Takes the code and the constants of the program out of the memory of this process. What still runs comes back from
/// the file, page by page; what only an earlier stage ran does not.
///
/// It asks the linker where they are and not the loader, whose lock a forked child may find held by a thread that it
/// does not have.
fn release_program() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: the linker places a header there, in a part of the program that is never written.
        let header = unsafe { &__ehdr_start };
        if header.e_ident[..4] != *b"\x7fELF" {
            return;
        }
        let at = std::ptr::from_ref(header);
        // SAFETY: the header says where as many program headers follow each other, in the same part.
        let segments = unsafe {
            let first = at.byte_add(header.e_phoff as usize).cast::<libc::Elf64_Phdr>();
            std::slice::from_raw_parts(first, usize::from(header.e_phnum))
        };
        release_segments(at as u64, segments);
    }
}

/// Releases the segments that nothing writes to, of an object whose first byte is at `first`.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn release_segments(first: u64, segments: &[libc::Elf64_Phdr]) {
    const PAGE: u64 = 4096;
    let loaded = || segments.iter().filter(|segment| segment.p_type == libc::PT_LOAD);
    let Some(head) = loaded().find(|segment| segment.p_offset == 0) else { return };
    let base = first.wrapping_sub(head.p_vaddr);
    for segment in loaded().filter(|segment| segment.p_flags & libc::PF_W == 0) {
        let start = base.wrapping_add(segment.p_vaddr);
        let (start, end) = (start.next_multiple_of(PAGE), (start + segment.p_memsz) / PAGE * PAGE);
        if start < end {
            // SAFETY: these pages are those of a file, mapped for reading alone: the next access reads them again.
            unsafe {
                libc::madvise(start as *mut libc::c_void, (end - start) as usize, libc::MADV_DONTNEED);
            }
        }
    }
}

/// Lowers the priority of this thread: it uses idle time of the cores, or a tenth of one.
pub fn yield_cores() {
    #[cfg(target_os = "linux")]
    {
        const NICENESS: libc::c_int = 10;
        // SAFETY: it changes a number of this thread alone. That it is refused does no harm.
        unsafe {
            libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS);
        }
    }
}

/// Gives this thread, and those that it starts from now on, the lowest priority: a hundredth of a core where others
/// want it. It must hold no lock that others wait for.
pub fn yield_cores_most() {
    #[cfg(target_os = "linux")]
    {
        const NICENESS: libc::c_int = 19;
        // SAFETY: it changes a number of this thread alone. That it is refused does no harm.
        unsafe {
            libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS);
        }
    }
}

/// Lets the allocator return large memory as soon as it is freed. A program with a budget calls this before its first
/// thread.
///
/// By default glibc keeps twice the largest freed block at the end of a thread's arena, where
/// [`release_freed`] does not reach: after a stage of a build whose live memory was 2 MiB it held 17.
pub fn keep_little_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt sets numbers of the allocator; no other thread runs yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

/// Smallest block that is mapped from the kernel and returned to it; as much may be free at the end of an arena. A
/// smaller value costs time, because each block is then faulted in again.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BYTES: libc::c_int = 1 << 20;

/// Free bytes on the disk that holds `folder`, for this user.
pub fn free_disk_bytes(folder: &std::path::Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: statvfs is plain data, for which all zeros are valid.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in a zero byte, and the pointer is to a live statvfs.
    let done = unsafe { libc::statvfs(path.as_ptr(), &mut stat) };
    (done == 0).then(|| stat.f_bavail as u64 * stat.f_frsize as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written() {
        assert_eq!(size(1536), "1.5 KiB");
    }

    #[test]
    fn a_small_budget_is_refused_with_one_that_works() {
        let mut account = Account::new();
        account.add("codes", 40 << 20);
        assert!(account.check(Some(55 << 20), "search").is_ok());
        let error = account.check(Some(20 << 20), "search").unwrap_err();
        assert!(error.message.contains("55MiB") && error.message.contains("codes"), "{}", error.message);
        assert!(account.check(None, "search").is_ok());
    }

    /// Constants of the program, in its file.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    static CONSTANTS: [u64; 1 << 19] = [7; 1 << 19];

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn what_the_program_has_used_leaves_memory_and_comes_back() {
        let in_memory = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() << 10
        };
        let sum = || std::hint::black_box(&CONSTANTS).iter().sum::<u64>();
        assert_eq!(sum(), 7 << 19);
        let before = in_memory();
        release_freed();
        let after = in_memory();
        // Other tests run meanwhile, in smaller pieces of the program.
        assert!(after + (2 << 20) < before, "{before} bytes of files in memory before, {after} after");
        assert_eq!(sum(), 7 << 19);
    }
}
