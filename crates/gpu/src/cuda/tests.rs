//! The calls to the driver and to the compiler, against libraries that check them on the CPU.

use super::*;
use crate::common::{self, Shape, Task, answer, answers, twin};
use crate::{Device, DeviceOptions, Failure, Job};
use std::time::Duration;
use stratann_kernel::bits::{BitCoder, Layout};
use stratann_testing::Need;

/// Compiles the libraries, one file for both; `None` without a compiler.
fn libraries(folder: &std::path::Path) -> Option<String> {
    let (source, library) = (folder.join("fake_cuda.cpp"), folder.join("libfake_cuda.so"));
    let launcher = include_str!("../../kernels/launch.cpp");
    let text = format!("{}{launcher}{}", crate::layout::SOURCE, include_str!("fake_cuda.cpp"));
    std::fs::write(&source, text).expect("a file");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_string());
    let run = std::process::Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-w", "-ffp-contract=off", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .output();
    match run {
        Ok(run) => {
            assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
            Some(library.to_str().expect("UTF-8").to_string())
        }
        Err(error) => {
            stratann_testing::leave_out(Need::Compiler, &format!("{compiler}: {error}"));
            None
        }
    }
}

/// Calls one of the tests' own functions of the libraries.
fn count(library: &str, name: &str) -> i32 {
    // SAFETY: the library is the one that was compiled, and the function takes nothing and returns an integer.
    unsafe {
        let library = libloading::Library::new(library).expect("loaded");
        let function = library.get::<unsafe extern "C" fn() -> i32>(name.as_bytes()).expect("a counter");
        function()
    }
}

fn open(library: &str, options: &DeviceOptions, coder: &BitCoder, codes: &[u8]) -> Result<Device, Error> {
    let gpu = || {
        let (driver, nvrtc) = (Driver::open_from(&[library])?, Nvrtc::open_from(&[library])?);
        Ok(Box::new(Gpu::open_with(driver, &nvrtc, options.device)?) as Box<dyn Backend>)
    };
    Device::start(options, coder, codes, gpu)
}

// One test: the libraries count objects for the whole process.
#[test]
fn calls_are_those_that_the_driver_expects() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(library) = libraries(folder.path()) else { return };
    let layout = Layout::even(45, 3, 7, true).expect("a layout");
    let shape = Shape { seed: 8, layout, centroids: 90, ip: false, scale: 1.0 };
    let (coder, codes) = (shape.coder(), shape.codes(2, 900));
    let tasks: Vec<Task> = (0..50).map(|n| shape.task(n, 900)).collect();
    // A device that the compiler knows, and one that is newer.
    for device in [0, 1] {
        let options = DeviceOptions { device, ..common::options() };
        let opened = open(&library, &options, &coder, &codes).expect("opens");
        assert_eq!(opened.info().name, "fake GPU");
        assert_eq!(opened.info().compute_capability, if device == 0 { (8, 6) } else { (13, 7) });
        for (answer, task) in answers(&opened, &tasks).into_iter().zip(&tasks) {
            assert_eq!(answer, Ok(twin(&codes, task)));
        }
        // The fake says that the kernels of a batch take 0.25 ms.
        let counters = opened.counters();
        assert_eq!(counters.kernel_us, 250 * counters.batches);
        drop(opened);
        assert_eq!(count(&library, "fake_cuda_objects"), 0);
    }
    let absent = DeviceOptions { device: 2, ..common::options() };
    let error = open(&library, &absent, &coder, &codes).err();
    assert_eq!(error, Some(Error::NoDevice { device: 2, count: 2 }));
    let budget_bytes = Some(1 << 40);
    let large = DeviceOptions { ids_max: 1 << 26, keep_max: 1, budget_bytes, ..common::options() };
    let error = open(&library, &large, &coder, &codes).err();
    assert!(matches!(error, Some(Error::Memory { .. })), "{error:?}");
    assert_eq!(count(&library, "fake_cuda_objects"), 0);
    a_failed_launch_loses_the_device(&library, &shape, &codes);
}

fn a_failed_launch_loses_the_device(library: &str, shape: &Shape, codes: &[u8]) {
    let options = DeviceOptions { timeout: Duration::from_secs(60), ..common::options() };
    let device = open(library, &options, &shape.coder(), codes).expect("opens");
    assert!(count(library, "fake_cuda_fail") > 0);
    let job = Job { ids: vec![1], keep: 1, exclude: u32::MAX, ..Job::default() };
    let task = Task { query: shape.query(1), job };
    let what = "gather returned FAKE_GONE (999)".to_string();
    assert_eq!(answer(&device, &task), Err(Failure::Failed { what }));
    assert!(device.is_lost());
    assert_eq!(answer(&device, &task), Err(Failure::Lost));
    drop(device);
    // Nothing of a lost device is touched, not even to free it.
    assert!(count(library, "fake_cuda_objects") > 0);
}

#[test]
fn libraries_that_are_absent_or_too_old_are_named() {
    let error = Driver::open_from(&["libno-such-driver.so.1"]).err().expect("missing").to_string();
    assert!(
        error.contains("libno-such-driver.so.1") && error.contains("install the NVIDIA driver"),
        "{error}"
    );
    let error = Nvrtc::open_from(&["libno-such-compiler.so"]).err().expect("missing").to_string();
    assert!(error.contains("libno-such-compiler.so") && error.contains("LD_LIBRARY_PATH"), "{error}");
    // A library without the functions: one that every Linux has.
    if cfg!(target_os = "linux") {
        let error = Driver::open_from(&["libc.so.6"]).err().expect("other functions").to_string();
        assert!(error.contains("cuInit") && error.contains("too old"), "{error}");
    }
}

#[test]
fn kernels_compile_where_the_compiler_is() {
    let nvrtc = match Nvrtc::open() {
        Ok(nvrtc) => nvrtc,
        Err(error) => return stratann_testing::leave_out(Need::Nvrtc, &error.to_string()),
    };
    assert!(nvrtc.cuda_version().expect("a version") >= (11, 2));
    // Machine code is an ELF file; a GPU that is newer than the compiler gets the intermediate language.
    let image = nvrtc.compile((8, 0)).expect("compiles");
    assert!(image.starts_with(b"\x7fELF"));
    let image = nvrtc.compile((99, 9)).expect("compiles");
    let text = std::ffi::CStr::from_bytes_until_nul(&image).expect("ends with a zero").to_string_lossy();
    for kernel in Kernel::ALL {
        assert!(text.contains(&format!(".entry {}(", kernel.name())), "{}", kernel.name());
    }
}
