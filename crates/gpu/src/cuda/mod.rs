//! A GPU of NVIDIA, by the driver's interface.

mod driver;
mod libraries;
mod nvrtc;

use crate::backend::{Backend, DeviceInfo, Staging};
use crate::batch::Batch;
use crate::layout::Kernel;
use crate::probe::{Probe, Version};
use crate::{Error, batch};
use driver::NOT_READY;
use libraries::{Address, Driver, Handle, Nvrtc};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::Duration;

/// Flag of `cuMemHostAlloc`: every context may use the memory.
const HOST_PORTABLE: u32 = 1;

/// Flag of `cuStreamCreate`: the stream does not wait for the default one.
const STREAM_NON_BLOCKING: u32 = 1;

/// Attribute of a function: most dynamic shared memory, in bytes.
const DYNAMIC_SHARED_MAX: c_int = 8;

/// Static shared memory of the kernel that scores codes, and what the driver keeps for itself.
const SHARED_RESERVED: u32 = 2048;

/// Part of a thread block's shared memory that components may take, so that two thread blocks fit the smallest GPUs.
const SHARED_MAX: u32 = 96 << 10;

struct Stream {
    handle: Handle,
    // Before the kernels, behind the kernels, behind the copies.
    events: [Handle; 3],
}

/// An open GPU.
pub(crate) struct Gpu {
    driver: Driver,
    info: DeviceInfo,
    device: c_int,
    context: Handle,
    module: Handle,
    functions: [Handle; Kernel::ALL.len()],
    shared_bytes_max: u32,
    allocations: BTreeSet<Address>,
    // Address in pinned memory and bytes of the staging areas of the same codes.
    staging: BTreeMap<u64, usize>,
    streams: Vec<Stream>,
    is_abandoned: bool,
}

// SAFETY: handles may be used by any thread to which the context is bound. `enter` binds it, and one
// thread at a time has the value.
unsafe impl Send for Gpu {}

impl Gpu {
    /// Opens a GPU and loads the kernels. Binds its context to the calling thread.
    pub(crate) fn open(number: u32) -> Result<Gpu, Error> {
        Gpu::open_with(Driver::open()?, &Nvrtc::open()?, number)
    }

    fn open_with(driver: Driver, nvrtc: &Nvrtc, number: u32) -> Result<Gpu, Error> {
        let count = driver.start()?;
        if number >= count {
            return Err(Error::NoDevice { device: number, count });
        }
        let (device, info) = driver.describe(number)?;
        let image = nvrtc.compile(info.compute_capability)?;
        let shared = driver.shared_bytes_max(device)?.saturating_sub(SHARED_RESERVED).min(SHARED_MAX);
        let mut context = null_mut();
        // SAFETY: the device is one that the driver named.
        driver.call("cuDevicePrimaryCtxRetain", unsafe { (driver.context_retain)(&mut context, device) })?;
        let mut gpu = Gpu {
            driver,
            info,
            device,
            context,
            module: null_mut(),
            functions: [null_mut(); Kernel::ALL.len()],
            shared_bytes_max: shared,
            allocations: BTreeSet::new(),
            staging: BTreeMap::new(),
            streams: Vec::new(),
            is_abandoned: false,
        };
        gpu.enter().map_err(Error::Call)?;
        gpu.load(&image)?;
        gpu.info.memory_free_bytes = gpu.driver.free_bytes()?;
        Ok(gpu)
    }

    fn load(&mut self, image: &[u8]) -> Result<(), Error> {
        let driver = &self.driver;
        // SAFETY: the image is whole: machine code has its size in its header, and the other form ends with a zero.
        let code = unsafe { (driver.module_load)(&mut self.module, image.as_ptr().cast()) };
        driver.call("cuModuleLoadData", code)?;
        for (kernel, function) in Kernel::ALL.into_iter().zip(&mut self.functions) {
            let name = CString::new(kernel.name()).map_err(|e| Error::Call(e.to_string()))?;
            // SAFETY: the module is loaded, and the name ends with a zero.
            let code = unsafe { (driver.module_function)(function, self.module, name.as_ptr()) };
            driver.call("cuModuleGetFunction", code)?;
        }
        let bytes = self.shared_bytes_max as c_int;
        let function = self.functions[Kernel::Distances as usize];
        // SAFETY: the function is one of the module.
        let code = unsafe { (driver.function_set)(function, DYNAMIC_SHARED_MAX, bytes) };
        driver.call("cuFuncSetAttribute", code)
    }

    fn start_stream(&mut self) -> Result<(), Error> {
        let mut stream = Stream { handle: null_mut(), events: [null_mut(); 3] };
        // SAFETY: the function writes one handle.
        let code = unsafe { (self.driver.stream_create)(&mut stream.handle, STREAM_NON_BLOCKING) };
        let mut result = self.driver.call("cuStreamCreate", code);
        for event in &mut stream.events {
            result = result.and_then(|()| {
                // SAFETY: as above.
                let code = unsafe { (self.driver.event_create)(event, 0) };
                self.driver.call("cuEventCreate", code)
            });
        }
        // What was created is destroyed with the others, also after an error.
        self.streams.push(stream);
        result
    }

    fn record(&self, event: Handle, stream: Handle) -> Result<(), String> {
        // SAFETY: both are handles of this context.
        self.driver.check("cuEventRecord", unsafe { (self.driver.event_record)(event, stream) })
    }

    fn launch(&self, batch: &Batch, launch: &batch::Launch, stream: Handle) -> Result<(), String> {
        let mut params = batch.params;
        let mut arguments = [(&raw mut params).cast::<c_void>()];
        // SAFETY: the kernels take the parameters by value, and the driver copies them before it returns. They describe
        // memory of this device.
        let code = unsafe {
            (self.driver.launch)(
                self.functions[launch.kernel as usize],
                launch.grid_x,
                launch.jobs,
                1,
                launch.threads,
                1,
                1,
                launch.shared_bytes,
                stream,
                arguments.as_mut_ptr(),
                null_mut(),
            )
        };
        self.driver.check(launch.kernel.name(), code)
    }
}

impl Backend for Gpu {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn shared_bytes_max(&self) -> u32 {
        self.shared_bytes_max
    }

    fn start_streams(&mut self, streams: usize) -> Result<(), Error> {
        (0..streams).try_for_each(|_| self.start_stream())
    }

    fn enter(&mut self) -> Result<(), String> {
        // SAFETY: the context is retained.
        self.driver.check("cuCtxSetCurrent", unsafe { (self.driver.context_set)(self.context) })
    }

    fn free_bytes(&mut self) -> Result<u64, Error> {
        self.driver.free_bytes()
    }

    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<Address, Error> {
        let mut address = 0;
        // SAFETY: the function writes one address.
        let code = unsafe { (self.driver.memory_allocate)(&mut address, bytes as usize) };
        let result = self.driver.check("cuMemAlloc", code);
        result.map_err(|reason| Error::Memory { what, bytes, reason })?;
        self.allocations.insert(address);
        Ok(address)
    }

    fn free(&mut self, address: Address) -> Result<(), String> {
        if !self.allocations.remove(&address) {
            return Err("there is no such memory".to_string());
        }
        // SAFETY: the memory is one of this device, and nothing that is under way uses it.
        self.driver.check("cuMemFree", unsafe { (self.driver.memory_free)(address) })
    }

    fn allocate_staging(&mut self, count: u32, area_bytes: u64) -> Result<Staging, Error> {
        let bytes = u64::from(count) * area_bytes;
        let (what, mut start) = ("staging in host memory", null_mut());
        // SAFETY: the function writes one pointer.
        let code = unsafe { (self.driver.host_allocate)(&mut start, bytes as usize, HOST_PORTABLE) };
        let result = self.driver.check("cuMemHostAlloc", code);
        result.map_err(|reason| Error::Memory { what, bytes, reason })?;
        // SAFETY: the memory has this size. Zeroed, it can be read as bytes.
        unsafe { std::ptr::write_bytes(start.cast::<u8>(), 0, bytes as usize) };
        self.staging.insert(start as u64, bytes as usize);
        Ok(Staging { address: start as u64, area_bytes })
    }

    fn free_staging(&mut self, staging: Staging) -> Result<(), String> {
        if self.staging.remove(&staging.address).is_none() {
            return Err("there is no such staging".to_string());
        }
        // SAFETY: the memory is one that the driver gave, and no copy from or to it is under way.
        let code = unsafe { (self.driver.host_free)(staging.address as *mut c_void) };
        self.driver.check("cuMemFreeHost", code)
    }

    fn write(&mut self, address: Address, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: the caller writes within an allocation; the driver checks it, too.
        let code = unsafe { (self.driver.copy_to_device)(address, bytes.as_ptr().cast(), bytes.len()) };
        self.driver.call("cuMemcpyHtoD", code)
    }

    fn wait_for_writes(&mut self) -> Result<(), Error> {
        // Copies are in the default stream, for which the streams of batches do not wait, nor does it for them.
        // SAFETY: null is the default stream of the current context.
        self.driver.call("cuStreamSynchronize", unsafe { (self.driver.stream_wait)(null_mut()) })
    }

    fn staging(&mut self, staging: Staging, block: u32) -> &mut [u8] {
        let (at, bytes) = (staging.area(block), staging.area_bytes as usize);
        let end = at + staging.area_bytes;
        match self.staging.get(&staging.address) {
            // SAFETY: the staging has this area, and no copy from or to it is under way.
            Some(&all) if end <= staging.address + all as u64 => unsafe {
                std::slice::from_raw_parts_mut(at as *mut u8, bytes)
            },
            _ => &mut [],
        }
    }

    fn enqueue(&mut self, stream: usize, batch: &Batch) -> Result<(), String> {
        let stream = self.streams.get(stream).ok_or("there is no such stream")?;
        let (params, handle) = (&batch.params, stream.handle);
        let block = |number: u32| params.blocks + u64::from(number) * params.block_bytes;
        for transfer in &batch.transfers {
            let from = batch.staging.area(transfer.block) as *const c_void;
            let (to, bytes) = (block(transfer.block), transfer.input_bytes);
            // SAFETY: both areas have these bytes, and nothing else uses them until the batch has ended.
            let code = unsafe { (self.driver.copy_to_device_async)(to, from, bytes, handle) };
            self.driver.check("cuMemcpyHtoDAsync", code)?;
        }
        self.record(stream.events[0], handle)?;
        for launch in &batch.launches {
            self.launch(batch, launch, handle)?;
        }
        self.record(stream.events[1], handle)?;
        for transfer in &batch.transfers {
            let from = block(transfer.block) + u64::from(params.results_at);
            let to = batch.staging.area(transfer.block) + u64::from(params.results_at);
            // SAFETY: as for the copies to the device.
            let code = unsafe {
                (self.driver.copy_from_device_async)(to as *mut c_void, from, transfer.result_bytes, handle)
            };
            self.driver.check("cuMemcpyDtoHAsync", code)?;
        }
        self.record(stream.events[2], handle)
    }

    fn is_done(&mut self, stream: usize) -> Result<bool, String> {
        let stream = self.streams.get(stream).ok_or("there is no such stream")?;
        // SAFETY: the event was recorded with the batch.
        match unsafe { (self.driver.event_query)(stream.events[2]) } {
            NOT_READY => Ok(false),
            code => self.driver.check("cuEventQuery", code).map(|()| true),
        }
    }

    fn kernel_time(&mut self, stream: usize) -> Option<Duration> {
        let [start, end, _] = self.streams.get(stream)?.events;
        let mut milliseconds = 0f32;
        // SAFETY: both events have happened.
        let code = unsafe { (self.driver.event_elapsed)(&mut milliseconds, start, end) };
        (code == 0).then(|| Duration::try_from_secs_f32(milliseconds / 1000.0).ok())?
    }

    fn abandon(&mut self) {
        self.is_abandoned = true;
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // The device may still write to memory of an abandoned one, and its driver may hang: all of it is left.
        if self.is_abandoned {
            return;
        }
        let driver = &self.driver;
        // SAFETY: nothing is under way. Every handle was created by this value, or is null and was not created. Errors
        // of these calls have no consequence that could be handled.
        unsafe {
            (driver.context_set)(self.context);
            for stream in &self.streams {
                for event in stream.events.into_iter().filter(|event| !event.is_null()) {
                    (driver.event_destroy)(event);
                }
                if !stream.handle.is_null() {
                    (driver.stream_destroy)(stream.handle);
                }
            }
            for &start in self.staging.keys() {
                (driver.host_free)(start as *mut c_void);
            }
            for &address in &self.allocations {
                (driver.memory_free)(address);
            }
            if !self.module.is_null() {
                (driver.module_unload)(self.module);
            }
            (driver.context_set)(null::<c_void>().cast_mut());
            (driver.context_release)(self.device);
        }
    }
}

/// Asks the libraries and the driver what there is.
pub(crate) fn probe() -> Probe {
    let version = |(major, minor)| Version { major, minor };
    let nvrtc = Nvrtc::open().and_then(|nvrtc| nvrtc.cuda_version()).map(version);
    let driver = match Driver::open() {
        Ok(driver) => driver,
        Err(error) => return Probe { driver: Err(error.clone()), nvrtc, devices: Err(error) },
    };
    let devices = driver.start().and_then(|count| {
        let numbers = 0..count;
        numbers.map(|number| describe_with_free_memory(&driver, number)).collect()
    });
    Probe { driver: driver.cuda_version().map(version), nvrtc, devices }
}

fn describe_with_free_memory(driver: &Driver, number: u32) -> Result<DeviceInfo, Error> {
    let (device, mut info) = driver.describe(number)?;
    let mut context = null_mut();
    // SAFETY: the device is one that the driver named.
    driver.call("cuDevicePrimaryCtxRetain", unsafe { (driver.context_retain)(&mut context, device) })?;
    // SAFETY: the context is retained.
    let bound = driver.call("cuCtxSetCurrent", unsafe { (driver.context_set)(context) });
    let free = bound.and_then(|()| driver.free_bytes());
    // SAFETY: the context was retained here, and is current on this thread only.
    unsafe {
        (driver.context_set)(null_mut());
        (driver.context_release)(device);
    }
    info.memory_free_bytes = free?;
    Ok(info)
}

#[cfg(test)]
mod tests;
