//! Calls of the driver, with errors as text.

use super::libraries::{Code, Driver};
use crate::{DeviceInfo, Error};
use std::ffi::{CStr, c_char, c_int};
use std::ptr::null;

/// `cuEventQuery`: the event has not happened yet.
pub(super) const NOT_READY: Code = 600;

const COMPUTE_CAPABILITY_MAJOR: c_int = 75;
const COMPUTE_CAPABILITY_MINOR: c_int = 76;
const SHARED_BYTES_MAX: c_int = 97;

impl Driver {
    /// Turns the code of a call into its error: the call's name and the driver's.
    pub(super) fn check(&self, call: &str, code: Code) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        let mut name: *const c_char = null();
        // SAFETY: the function writes one pointer.
        let found = unsafe { (self.error_name)(code, &mut name) };
        if found != 0 || name.is_null() {
            return Err(format!("{call} returned the unknown code {code}"));
        }
        // SAFETY: the driver's names are static and end with a zero.
        let name = unsafe { CStr::from_ptr(name) };
        Err(format!("{call} returned {} ({code})", name.to_string_lossy()))
    }

    /// As [`check`](Self::check), as an error of `open`.
    pub(super) fn call(&self, call: &str, code: Code) -> Result<(), Error> {
        self.check(call, code).map_err(Error::Call)
    }

    /// Prepares the driver for this process; returns the number of devices.
    pub(super) fn start(&self) -> Result<u32, Error> {
        // SAFETY: the first call of the driver, with the only flags that exist.
        self.call("cuInit", unsafe { (self.init)(0) })?;
        let mut count = 0;
        // SAFETY: the function writes one integer.
        self.call("cuDeviceGetCount", unsafe { (self.device_count)(&mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The newest CUDA version of the driver.
    pub(super) fn cuda_version(&self) -> Result<(u32, u32), Error> {
        let mut version = 0;
        // SAFETY: the function writes one integer; it works before `cuInit`.
        self.call("cuDriverGetVersion", unsafe { (self.version)(&mut version) })?;
        let version = u32::try_from(version).unwrap_or(0);
        Ok((version / 1000, version % 1000 / 10))
    }

    fn attribute(&self, attribute: c_int, device: c_int) -> Result<u32, Error> {
        let mut value = 0;
        // SAFETY: the function writes one integer, and refuses an attribute or a device that does not exist.
        self.call("cuDeviceGetAttribute", unsafe { (self.device_attribute)(&mut value, attribute, device) })?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Handle of the device with a number, and the device without its free memory.
    pub(super) fn describe(&self, number: u32) -> Result<(c_int, DeviceInfo), Error> {
        let mut device = 0;
        let ordinal = c_int::try_from(number).unwrap_or(c_int::MAX);
        // SAFETY: the function writes one integer, and refuses a number that does not exist.
        self.call("cuDeviceGet", unsafe { (self.device)(&mut device, ordinal) })?;
        let mut name = [0u8; 256];
        // SAFETY: the function writes at most as many bytes as it is told, with a zero at the end.
        let code = unsafe { (self.device_name)(name.as_mut_ptr().cast(), name.len() as c_int, device) };
        self.call("cuDeviceGetName", code)?;
        let name = CStr::from_bytes_until_nul(&name).map(|name| name.to_string_lossy().into_owned());
        let mut memory = 0;
        // SAFETY: the function writes one size.
        self.call("cuDeviceTotalMem", unsafe { (self.device_memory)(&mut memory, device) })?;
        let compute_capability = (
            self.attribute(COMPUTE_CAPABILITY_MAJOR, device)?,
            self.attribute(COMPUTE_CAPABILITY_MINOR, device)?,
        );
        let (name, memory_bytes) = (name.unwrap_or_default(), memory as u64);
        Ok((device, DeviceInfo { number, name, compute_capability, memory_bytes, memory_free_bytes: 0 }))
    }

    /// Most shared memory of one thread block, in bytes.
    pub(super) fn shared_bytes_max(&self, device: c_int) -> Result<u32, Error> {
        self.attribute(SHARED_BYTES_MAX, device)
    }

    /// Free memory of the device of the current context, in bytes.
    pub(super) fn free_bytes(&self) -> Result<u64, Error> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the function writes two sizes.
        self.call("cuMemGetInfo", unsafe { (self.memory_info)(&mut free, &mut total) })?;
        Ok(free as u64)
    }
}
