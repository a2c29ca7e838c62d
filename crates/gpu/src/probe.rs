//! Parts that this machine has for a GPU to be used.

use crate::{DeviceInfo, Error, cuda};
use std::fmt;

/// A version of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Libraries and devices, or what is missing.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// The newest version of CUDA that the driver runs.
    pub driver: Result<Version, Error>,
    /// Version of the compiler of kernels.
    pub nvrtc: Result<Version, Error>,
    /// The GPUs.
    pub devices: Result<Vec<DeviceInfo>, Error>,
}

impl Probe {
    /// Whether a device can be opened.
    pub fn is_usable(&self) -> bool {
        self.driver.is_ok()
            && self.nvrtc.is_ok()
            && self.devices.as_ref().is_ok_and(|devices| !devices.is_empty())
    }
}

/// Returns what this machine has. Never panics, whatever is missing.
pub fn probe() -> Probe {
    // A thread of its own: the driver binds contexts to the calling thread, which may have one of another library.
    let probing = std::thread::Builder::new().name("gpu-probe".to_string()).spawn(cuda::probe);
    let failed = |why: String| {
        let error = Error::Call(why);
        Probe { driver: Err(error.clone()), nvrtc: Err(error.clone()), devices: Err(error) }
    };
    match probing {
        Ok(thread) => thread.join().unwrap_or_else(|_| failed("the probe panicked".to_string())),
        Err(error) => failed(format!("no thread for the probe: {error}")),
    }
}
