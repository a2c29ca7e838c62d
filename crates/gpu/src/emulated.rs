//! A device on the CPU, for tests: the same kernels, compiled by a C++ compiler, one thread for each stream.

use crate::Error;
use crate::backend::{Backend, DeviceInfo, Staging};
use crate::batch::Batch;
use crate::bits::BIT_HEADER_BYTES;
use crate::layout::{HEADER_BYTES, Params, RESULT_HEADER_BYTES, SOURCE};
use libloading::Library;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, OnceLock};
use std::time::Duration;

/// Program that runs the kernels on the CPU.
const LAUNCHER: &str = include_str!("../kernels/launch.cpp");

/// Shared memory of an emulated thread block, in bytes. It is smaller than the components of long queries: tests reach
/// both of their places.
const SHARED_BYTES: u32 = 8 << 10;

/// Alignment of device memory.
const ALIGNMENT: usize = 256;

/// Faults of an emulated device. Batches and launches are counted from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The launch that fails.
    pub fail_launch: Option<u64>,
    /// The first batch that never ends.
    pub hang_at: Option<u64>,
    /// The batch during whose start the driver does not return for this time.
    pub block_at: Option<(u64, Duration)>,
    /// The first batch whose end cannot be asked for: the device is gone.
    pub lose_at: Option<u64>,
    /// The batch whose results are overwritten with nonsense.
    pub garble_at: Option<u64>,
    /// Memory of the device, in bytes; 1 GiB where it is not given.
    pub memory_bytes: Option<u64>,
    /// Allocations beyond this many bytes in all fail, though the memory seems free.
    pub allocation_limit: Option<u64>,
    /// Additional time of each batch.
    pub delay: Duration,
    /// Whether a batch ends only together with one of another stream.
    pub ends_in_pairs: bool,
    /// The copy of codes during which the driver does not return for this time, counted from 0.
    pub block_write: Option<(u64, Duration)>,
    /// Time for which the driver does not return when device memory is freed.
    pub block_free: Option<Duration>,
    /// Additional time of each copy of codes.
    pub write_delay: Duration,
    /// The copy of codes that fails, counted from 0.
    pub fail_write: Option<u64>,
}

type Launcher = unsafe extern "C" fn(u32, *const Params, u32, u32, u32, *mut u8, u32) -> i32;

/// The compiled kernels.
pub(crate) struct Program {
    launch: Launcher,
    _library: Library,
}

impl Program {
    /// Returns the kernels, compiled once for the process.
    pub(crate) fn get() -> Result<&'static Program, Error> {
        static PROGRAM: OnceLock<Result<Program, Error>> = OnceLock::new();
        PROGRAM.get_or_init(Program::compile).as_ref().map_err(Error::clone)
    }

    fn compile() -> Result<Program, Error> {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_string());
        let missing =
            |what: String| Error::Missing { what, remedy: "install g++ or set CXX to a C++ compiler" };
        let folder = tempfile::tempdir().map_err(|e| missing(format!("no temporary folder: {e}")))?;
        let (source, library) = (folder.path().join("score.cpp"), folder.path().join("score.so"));
        std::fs::write(&source, format!("{SOURCE}{LAUNCHER}"))
            .map_err(|e| missing(format!("{}: {e}", source.display())))?;
        let run = Command::new(&compiler)
            .args(["-std=c++17", "-O2", "-w", "-ffp-contract=off", "-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .output()
            .map_err(|e| missing(format!("the C++ compiler {compiler} cannot be started: {e}")))?;
        if !run.status.success() {
            let log = String::from_utf8_lossy(&run.stderr).into_owned();
            return Err(Error::Compile { architecture: "this CPU".to_string(), log });
        }
        let unloadable =
            |e: libloading::Error| missing(format!("the compiled kernels cannot be loaded: {e}"));
        // SAFETY: the library was just compiled from our source, which runs nothing as it is loaded.
        let library = unsafe { Library::new(&library) }.map_err(unloadable)?;
        // SAFETY: the types are those of the functions in the source.
        let launch = *unsafe { library.get::<Launcher>(b"stratann_launch\0") }.map_err(unloadable)?;
        // SAFETY: as above.
        let size = *unsafe { library.get::<unsafe extern "C" fn(u32) -> u32>(b"stratann_size\0") }
            .map_err(unloadable)?;
        // SAFETY: the function takes any number.
        let sizes = [0, 1, 2, 3, 4].map(|of| unsafe { size(of) } as usize);
        // The query begins at a multiple of 16 behind the header.
        let known = [size_of::<Params>(), sizes[1], RESULT_HEADER_BYTES, 8, BIT_HEADER_BYTES];
        if sizes != known || sizes[1].next_multiple_of(16) != HEADER_BYTES {
            let log = format!("its structs have {sizes:?} bytes; layout.rs has {known:?}");
            return Err(Error::Compile { architecture: "this CPU".to_string(), log });
        }
        Ok(Program { launch, _library: library })
    }

    /// Runs a batch, whose memory is allocated.
    fn run(&self, batch: &Batch, order: u32) {
        let params = &batch.params;
        let block = |number: u32| params.blocks + u64::from(number) * params.block_bytes;
        for transfer in &batch.transfers {
            let from = batch.staging.area(transfer.block) as *const u8;
            let to = block(transfer.block) as *mut u8;
            // SAFETY: both areas have these bytes, and only this thread uses them while the batch runs.
            unsafe { std::ptr::copy_nonoverlapping(from, to, transfer.input_bytes) };
        }
        for launch in &batch.launches {
            let mut shared = vec![0u64; launch.shared_bytes as usize / 8 + 1];
            let shared = shared.as_mut_ptr().cast();
            let (kernel, grid_x, threads) = (launch.kernel as u32, launch.grid_x, launch.threads);
            // SAFETY: the parameters describe memory that is allocated until the batch has ended.
            unsafe { (self.launch)(kernel, params, grid_x, launch.jobs, threads, shared, order) };
        }
        for transfer in &batch.transfers {
            let at = u64::from(params.results_at);
            let from = (block(transfer.block) + at) as *const u8;
            let to = (batch.staging.area(transfer.block) + at) as *mut u8;
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(from, to, transfer.result_bytes) };
        }
    }
}

/// Zeroed memory at an address that does not change.
struct Area {
    address: usize,
    layout: std::alloc::Layout,
    bytes: u64,
    // Bytes of all areas of a device.
    allocated: Arc<AtomicU64>,
}

impl Area {
    fn new(bytes: u64, allocated: &Arc<AtomicU64>) -> Option<Area> {
        let size = usize::try_from(bytes).ok()?.max(ALIGNMENT);
        let layout = std::alloc::Layout::from_size_align(size, ALIGNMENT).ok()?;
        // SAFETY: the size is not zero.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        if pointer.is_null() {
            return None;
        }
        allocated.fetch_add(bytes, Ordering::Relaxed);
        Some(Area { address: pointer as usize, layout, bytes, allocated: allocated.clone() })
    }

    fn holds(&self, at: usize, bytes: usize) -> bool {
        self.address <= at && at - self.address + bytes <= self.layout.size()
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and its owners are gone.
        unsafe { std::alloc::dealloc(self.address as *mut u8, self.layout) };
        self.allocated.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Memory by address. Batches under way own theirs, too.
type Areas = BTreeMap<u64, Arc<Area>>;

/// Removes an area that no batch uses.
fn free(areas: &mut Areas, address: u64) -> Result<(), String> {
    let area = areas.remove(&address).ok_or("there is no such memory")?;
    match Arc::try_unwrap(area) {
        Ok(_) => Ok(()),
        Err(area) => {
            areas.insert(address, area);
            Err("memory of a batch under way is freed".to_string())
        }
    }
}

/// A batch, its number, and its memory.
type Work = (Batch, u64, Vec<Arc<Area>>);

struct Stream {
    batches: Sender<Work>,
    is_done: Arc<AtomicBool>,
    is_lost: bool,
    kernel_ns: Arc<AtomicU64>,
}

/// An emulated device.
pub(crate) struct Emulator {
    info: DeviceInfo,
    faults: Faults,
    program: &'static Program,
    device: Areas,
    staging: Areas,
    // Bytes of device memory, and of staging.
    allocated: [Arc<AtomicU64>; 2],
    writes: u64,
    streams: Vec<Stream>,
    threads: Vec<std::thread::JoinHandle<()>>,
    is_abandoned: bool,
    batches: u64,
    launches: u64,
}

impl Emulator {
    /// Opens an emulated device; compiles the kernels where they are not yet.
    pub(crate) fn open(faults: Faults) -> Result<Emulator, Error> {
        let memory_bytes = faults.memory_bytes.unwrap_or(1 << 30);
        let info = DeviceInfo {
            name: "emulated on the CPU".to_string(),
            memory_bytes,
            memory_free_bytes: memory_bytes,
            ..DeviceInfo::default()
        };
        Ok(Emulator {
            info,
            faults,
            program: Program::get()?,
            device: Areas::new(),
            staging: Areas::new(),
            allocated: Default::default(),
            writes: 0,
            streams: Vec::new(),
            threads: Vec::new(),
            is_abandoned: false,
            batches: 0,
            launches: 0,
        })
    }

    /// Bytes of device memory and of staging that are allocated; they can be read for as long as anything is.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> [Arc<AtomicU64>; 2] {
        self.allocated.clone()
    }

    /// The memory of a batch.
    fn areas_of(&self, batch: &Batch) -> Result<Vec<Arc<Area>>, String> {
        let areas = [
            self.device.get(&batch.params.codes),
            self.device.get(&batch.params.blocks),
            self.staging.get(&batch.staging.address),
        ];
        areas.into_iter().map(|area| area.cloned().ok_or("a batch without memory".to_string())).collect()
    }

    fn start_stream(&mut self, number: usize, pairs: &Arc<Barrier>) -> Result<(), Error> {
        let (batches, received) = channel::<Work>();
        let (is_done, kernel_ns) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let (done, ns) = (is_done.clone(), kernel_ns.clone());
        let (program, faults) = (self.program, self.faults.clone());
        let pairs = pairs.clone();
        let work = move || {
            for (batch, n, areas) in received {
                std::thread::sleep(faults.delay);
                let start = std::time::Instant::now();
                program.run(&batch, n as u32);
                ns.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
                if faults.garble_at == Some(n) {
                    garble(&batch);
                }
                if faults.ends_in_pairs {
                    pairs.wait();
                }
                // Memory may be freed once the batch is done.
                drop(areas);
                // A batch that hangs does nothing more.
                if faults.hang_at.is_none_or(|at| n < at) {
                    done.store(true, Ordering::Release);
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("emulated-{number}")).spawn(work);
        self.threads.push(thread.map_err(|e| Error::Thread(e.to_string()))?);
        self.streams.push(Stream { batches, is_done, is_lost: false, kernel_ns });
        Ok(())
    }
}

/// Overwrites the counts of a batch's results.
fn garble(batch: &Batch) {
    for transfer in &batch.transfers {
        let at = batch.staging.area(transfer.block) + u64::from(batch.params.results_at);
        // SAFETY: the area has the results at this offset, and the batch is not done.
        unsafe { (at as *mut [u32; 2]).write([u32::MAX, 7]) };
    }
}

impl Backend for Emulator {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn shared_bytes_max(&self) -> u32 {
        SHARED_BYTES
    }

    fn start_streams(&mut self, streams: usize) -> Result<(), Error> {
        let pairs = Arc::new(Barrier::new(2));
        (0..streams).try_for_each(|number| self.start_stream(number, &pairs))
    }

    fn enter(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn free_bytes(&mut self) -> Result<u64, Error> {
        Ok(self.info.memory_bytes.saturating_sub(self.allocated[0].load(Ordering::Relaxed)))
    }

    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<u64, Error> {
        let limit = self.faults.allocation_limit.unwrap_or(self.info.memory_bytes);
        let refuse = |reason: &str| Error::Memory { what, bytes, reason: reason.to_string() };
        if self.allocated[0].load(Ordering::Relaxed) + bytes > limit {
            return Err(refuse("the emulated device has no more"));
        }
        let area = Area::new(bytes, &self.allocated[0]).ok_or_else(|| refuse("the host has no more"))?;
        let address = area.address as u64;
        self.device.insert(address, Arc::new(area));
        Ok(address)
    }

    fn free(&mut self, address: u64) -> Result<(), String> {
        std::thread::sleep(self.faults.block_free.unwrap_or_default());
        free(&mut self.device, address)
    }

    fn allocate_staging(&mut self, count: u32, area_bytes: u64) -> Result<Staging, Error> {
        let bytes = u64::from(count) * area_bytes;
        let (what, reason) = ("staging in host memory", "the host has no more".to_string());
        let area = Area::new(bytes, &self.allocated[1]).ok_or(Error::Memory { what, bytes, reason })?;
        let address = area.address as u64;
        self.staging.insert(address, Arc::new(area));
        Ok(Staging { address, area_bytes })
    }

    fn free_staging(&mut self, staging: Staging) -> Result<(), String> {
        free(&mut self.staging, staging.address)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let n = self.writes;
        self.writes += 1;
        if self.faults.fail_write == Some(n) {
            return Err(Error::Call("a copy failed, as the test demands".to_string()));
        }
        let blocked = self.faults.block_write.filter(|&(at, _)| at == n).map_or(Duration::ZERO, |b| b.1);
        std::thread::sleep(self.faults.write_delay + blocked);
        let at = address as usize;
        if !self.device.values().any(|area| area.holds(at, bytes.len())) {
            return Err(Error::Call("a copy beyond the end of an allocation".to_string()));
        }
        // SAFETY: the bytes lie in an allocation, and no batch uses them.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        Ok(())
    }

    fn wait_for_writes(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn staging(&mut self, staging: Staging, block: u32) -> &mut [u8] {
        let (at, bytes) = (staging.area(block) as usize, staging.area_bytes as usize);
        match self.staging.get(&staging.address).filter(|area| area.holds(at, bytes)) {
            // SAFETY: the area has these bytes, and no batch that uses the block is under way.
            Some(_) => unsafe { std::slice::from_raw_parts_mut(at as *mut u8, bytes) },
            None => &mut [],
        }
    }

    fn enqueue(&mut self, stream: usize, batch: &Batch) -> Result<(), String> {
        let n = self.batches;
        self.batches += 1;
        let first = self.launches;
        self.launches += batch.launches.len() as u64;
        if self.faults.fail_launch.is_some_and(|at| (first..self.launches).contains(&at)) {
            return Err("a launch failed, as the test demands".to_string());
        }
        if let Some((_, time)) = self.faults.block_at.filter(|&(at, _)| at == n) {
            std::thread::sleep(time);
        }
        let areas = self.areas_of(batch)?;
        let stream = self.streams.get_mut(stream).ok_or("there is no such stream")?;
        stream.is_done.store(false, Ordering::Release);
        stream.is_lost = self.faults.lose_at.is_some_and(|at| n >= at);
        stream.batches.send((batch.clone(), n, areas)).map_err(|e| e.to_string())
    }

    fn is_done(&mut self, stream: usize) -> Result<bool, String> {
        let stream = self.streams.get(stream).ok_or("there is no such stream")?;
        if stream.is_lost {
            return Err("the device is gone, as the test demands".to_string());
        }
        Ok(stream.is_done.load(Ordering::Acquire))
    }

    fn kernel_time(&mut self, stream: usize) -> Option<Duration> {
        Some(Duration::from_nanos(self.streams.get(stream)?.kernel_ns.load(Ordering::Relaxed)))
    }

    fn abandon(&mut self) {
        self.is_abandoned = true;
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // The threads end with their channels. They own their batches' memory: an abandoned device needs no wait.
        self.streams.clear();
        if !self.is_abandoned {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests;
