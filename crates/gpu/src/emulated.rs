//! A device on the CPU, for tests: the same kernels, compiled by a C++ compiler, one thread for each stream.

use crate::Error;
use crate::backend::{Backend, DeviceInfo};
use crate::batch::Batch;
use crate::bits::BIT_HEADER_BYTES;
use crate::layout::{HEADER_BYTES, Params, RESULT_HEADER_BYTES, SOURCE};
use libloading::Library;
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

    /// Runs a batch. `memory` and `staging` are what the addresses in it are of.
    fn run(&self, batch: &Batch, staging: &[Area], order: u32) {
        let params = &batch.params;
        let block = |number: u32| params.blocks + u64::from(number) * params.block_bytes;
        for transfer in &batch.transfers {
            let from = staging[transfer.block as usize].address as *const u8;
            let to = block(transfer.block) as *mut u8;
            // SAFETY: both areas have these bytes, and only this thread uses them while the batch runs.
            unsafe { std::ptr::copy_nonoverlapping(from, to, transfer.input_bytes) };
        }
        for launch in &batch.launches {
            let mut shared = vec![0u64; launch.shared_bytes as usize / 8 + 1];
            let shared = shared.as_mut_ptr().cast();
            let (kernel, grid_x, threads) = (launch.kernel as u32, launch.grid_x, launch.threads);
            // SAFETY: the parameters describe memory that is allocated for as long as the stream lives.
            unsafe { (self.launch)(kernel, params, grid_x, launch.jobs, threads, shared, order) };
        }
        for transfer in &batch.transfers {
            let at = u64::from(params.results_at);
            let from = (block(transfer.block) + at) as *const u8;
            let to = (staging[transfer.block as usize].address as u64 + at) as *mut u8;
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(from, to, transfer.result_bytes) };
        }
    }
}

/// Zeroed memory at an address that does not change.
struct Area {
    address: usize,
    layout: std::alloc::Layout,
}

impl Area {
    fn new(bytes: u64) -> Option<Area> {
        let bytes = usize::try_from(bytes).ok()?.max(ALIGNMENT);
        let layout = std::alloc::Layout::from_size_align(bytes, ALIGNMENT).ok()?;
        // SAFETY: the size is not zero.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        (!pointer.is_null()).then_some(Area { address: pointer as usize, layout })
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and its owners are gone.
        unsafe { std::alloc::dealloc(self.address as *mut u8, self.layout) };
    }
}

/// Memory that the streams' threads use, too.
#[derive(Default)]
struct Memory {
    device: Vec<Area>,
    staging: Vec<Area>,
}

struct Stream {
    batches: Sender<(Batch, u64)>,
    is_done: Arc<AtomicBool>,
    is_lost: bool,
    kernel_ns: Arc<AtomicU64>,
}

/// An emulated device.
pub(crate) struct Emulator {
    info: DeviceInfo,
    faults: Faults,
    program: &'static Program,
    memory: Arc<Memory>,
    allocated: u64,
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
            memory: Arc::default(),
            allocated: 0,
            streams: Vec::new(),
            threads: Vec::new(),
            is_abandoned: false,
            batches: 0,
            launches: 0,
        })
    }

    fn allocate_area(&mut self, what: &'static str, bytes: u64) -> Result<usize, Error> {
        let limit = self.faults.allocation_limit.unwrap_or(self.info.memory_bytes);
        let refuse = |reason: &str| Error::Memory { what, bytes, reason: reason.to_string() };
        if self.allocated + bytes > limit {
            return Err(refuse("the emulated device has no more"));
        }
        self.allocated += bytes;
        let area = Area::new(bytes).ok_or_else(|| refuse("the host has no more"))?;
        let address = area.address;
        let memory = Arc::get_mut(&mut self.memory).ok_or_else(|| refuse("the device is in use"))?;
        memory.device.push(area);
        Ok(address)
    }

    fn start_stream(&mut self, number: usize, pairs: &Arc<Barrier>) -> Result<(), Error> {
        let (batches, received) = channel::<(Batch, u64)>();
        let (is_done, kernel_ns) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let (done, ns) = (is_done.clone(), kernel_ns.clone());
        let (memory, program, faults) = (self.memory.clone(), self.program, self.faults.clone());
        let pairs = pairs.clone();
        let work = move || {
            for (batch, n) in received {
                std::thread::sleep(faults.delay);
                let start = std::time::Instant::now();
                program.run(&batch, &memory.staging, n as u32);
                ns.store(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
                if faults.garble_at == Some(n) {
                    garble(&batch, &memory.staging);
                }
                if faults.ends_in_pairs {
                    pairs.wait();
                }
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
fn garble(batch: &Batch, staging: &[Area]) {
    for transfer in &batch.transfers {
        let at = staging[transfer.block as usize].address + batch.params.results_at as usize;
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

    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<u64, Error> {
        Ok(self.allocate_area(what, bytes)? as u64)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let at = address as usize;
        let holds = |a: &Area| a.address <= at && at - a.address + bytes.len() <= a.layout.size();
        if !self.memory.device.iter().any(holds) {
            return Err(Error::Call("a copy beyond the end of an allocation".to_string()));
        }
        // SAFETY: the bytes lie in an allocation, and no stream runs yet.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        Ok(())
    }

    fn prepare(&mut self, count: u32, bytes: u64, streams: usize) -> Result<(), Error> {
        let what = "staging";
        let areas: Option<Vec<Area>> = (0..count).map(|_| Area::new(bytes)).collect();
        let refuse = || Error::Memory { what, bytes, reason: "the host has no more".to_string() };
        Arc::get_mut(&mut self.memory).ok_or_else(refuse)?.staging = areas.ok_or_else(refuse)?;
        let pairs = Arc::new(Barrier::new(2));
        (0..streams).try_for_each(|number| self.start_stream(number, &pairs))
    }

    fn enter(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn staging(&mut self, block: u32) -> &mut [u8] {
        match self.memory.staging.get(block as usize) {
            // SAFETY: the area has these bytes, and no batch that uses the block is under way.
            Some(area) => unsafe {
                std::slice::from_raw_parts_mut(area.address as *mut u8, area.layout.size())
            },
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
        let stream = self.streams.get_mut(stream).ok_or("there is no such stream")?;
        stream.is_done.store(false, Ordering::Release);
        stream.is_lost = self.faults.lose_at.is_some_and(|at| n >= at);
        stream.batches.send((batch.clone(), n)).map_err(|e| e.to_string())
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
        // The threads end with their channels. They own the memory, so an abandoned device needs no wait.
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
