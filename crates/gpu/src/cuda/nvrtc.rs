//! Compilation of the kernels for a device.

use super::libraries::{Code, Handle, Nvrtc};
use crate::Error;
use crate::layout::SOURCE;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{null, null_mut};

/// Floats must have the bits of the CPU: no multiplication is fused with an addition unless the source says so, and no
/// small number is flushed to zero. `bench/gpu_compile.py` uses the same options.
const OPTIONS: [&CStr; 5] =
    [c"--std=c++17", c"--ftz=false", c"--prec-div=true", c"--prec-sqrt=true", c"--fmad=false"];

/// A program of the compiler, destroyed at the end.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    handle: Handle,
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is a program that was created and is used no more.
        unsafe { (self.nvrtc.destroy)(&mut self.handle) };
    }
}

impl Nvrtc {
    /// The version of CUDA that it belongs to.
    pub(super) fn cuda_version(&self) -> Result<(u32, u32), Error> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the function writes two integers.
        check("nvrtcVersion", unsafe { (self.version)(&mut major, &mut minor) })?;
        Ok((u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0)))
    }

    /// Compiles the kernels: machine code where the compiler knows the device, else the intermediate language of the
    /// newest architecture below it, which the driver compiles.
    pub(super) fn compile(&self, compute_capability: (u32, u32)) -> Result<Vec<u8>, Error> {
        let wanted = compute_capability.0 * 10 + compute_capability.1;
        let known = self.known_architectures()?;
        let is_known = known.contains(&wanted);
        let best = known.into_iter().filter(|&a| a <= wanted).max().unwrap_or(wanted);
        let architecture = if is_known { format!("sm_{wanted}") } else { format!("compute_{best}") };
        let program = self.create()?;
        let option = format!("--gpu-architecture={architecture}");
        let option = CString::new(option).map_err(|e| Error::Call(e.to_string()))?;
        let options: Vec<*const c_char> =
            std::iter::once(option.as_c_str()).chain(OPTIONS).map(CStr::as_ptr).collect();
        // SAFETY: the options live until the call returns.
        let code = unsafe { (self.compile)(program.handle, options.len() as c_int, options.as_ptr()) };
        if code != 0 {
            let log = program.read("nvrtcGetProgramLog", self.log_size, self.log)?;
            let log = String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_string();
            return Err(Error::Compile { architecture, log: format!("code {code}; {log}") });
        }
        if is_known {
            program.read("nvrtcGetCUBIN", self.cubin_size, self.cubin)
        } else {
            program.read("nvrtcGetPTX", self.ptx_size, self.ptx)
        }
    }

    fn known_architectures(&self) -> Result<Vec<u32>, Error> {
        let mut count = 0;
        // SAFETY: the function writes one integer.
        check("nvrtcGetNumSupportedArchs", unsafe { (self.architecture_count)(&mut count) })?;
        let mut known = vec![0 as c_int; usize::try_from(count).unwrap_or(0)];
        if !known.is_empty() {
            // SAFETY: the function writes as many integers as it said.
            check("nvrtcGetSupportedArchs", unsafe { (self.architectures)(known.as_mut_ptr()) })?;
        }
        Ok(known.into_iter().filter_map(|a| u32::try_from(a).ok()).collect())
    }

    fn create(&self) -> Result<Program<'_>, Error> {
        let source = CString::new(SOURCE).map_err(|e| Error::Call(e.to_string()))?;
        let mut handle = null_mut();
        // SAFETY: source and name end with a zero, and there are no headers. The compiler copies the source.
        let code =
            unsafe { (self.create)(&mut handle, source.as_ptr(), c"kernels.cu".as_ptr(), 0, null(), null()) };
        check("nvrtcCreateProgram", code)?;
        Ok(Program { nvrtc: self, handle })
    }
}

impl Program<'_> {
    /// Reads one of the results of a compilation.
    fn read(
        &self,
        call: &str,
        size: unsafe extern "C" fn(Handle, *mut usize) -> Code,
        get: unsafe extern "C" fn(Handle, *mut c_char) -> Code,
    ) -> Result<Vec<u8>, Error> {
        let mut bytes = 0;
        // SAFETY: the function writes one size.
        check(call, unsafe { size(self.handle, &mut bytes) })?;
        let mut out = vec![0u8; bytes];
        // SAFETY: the buffer has the size that the compiler named.
        check(call, unsafe { get(self.handle, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }
}

fn check(call: &str, code: Code) -> Result<(), Error> {
    if code == 0 { Ok(()) } else { Err(Error::Call(format!("{call} returned {code}"))) }
}
