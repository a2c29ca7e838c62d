//! The calls to the driver and to the compiler, against libraries that check them on the CPU.

use super::*;
use crate::common::{self, Shape, Task, answer, answers, twin};
use crate::{CodesOptions, Device, DeviceOptions, Failure, Job};
use std::sync::Arc;
use std::time::Duration;
use stratann_kernel::bits::Layout;
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

fn open(library: &str, options: &DeviceOptions) -> Result<Arc<Device>, Error> {
    let gpu = || {
        let (driver, nvrtc) = (Driver::open_from(&[library])?, Nvrtc::open_from(&[library])?);
        Ok(Box::new(Gpu::open_with(driver, &nvrtc, options.device)?) as Box<dyn Backend>)
    };
    Device::start(options, gpu)
}

fn shape(dim: usize) -> Shape {
    let layout = Layout::even(dim, 3, 7, true).expect("a layout");
    Shape { seed: 8, layout, centroids: 90, ip: false, scale: 1.0 }
}

// One test: the libraries count objects for the whole process.
#[test]
fn calls_are_those_that_the_driver_expects() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(library) = libraries(folder.path()) else { return };
    let shape = shape(45);
    let (coder, codes) = (shape.coder(), shape.codes(2, 900));
    let tasks: Vec<Task> = (0..50).map(|n| shape.task(n, 900)).collect();
    // A device that the compiler knows, and one that is newer.
    for device in [0, 1] {
        let options = DeviceOptions { device, ..common::device_options() };
        let device = open(&library, &options).expect("opens");
        assert_eq!(device.info().name, "fake GPU");
        assert_eq!(device.info().compute_capability, if options.device == 0 { (8, 6) } else { (13, 7) });
        let loaded = device.load(&common::options(), &coder, &codes).expect("fits");
        for (answer, task) in answers(&loaded, &tasks).into_iter().zip(&tasks) {
            assert_eq!(answer, Ok(twin(&codes, task)));
        }
        // The fake says that the kernels of a batch take 0.25 ms.
        let counters = loaded.counters();
        assert_eq!(counters.kernel_us, 250 * counters.batches);
        drop((device, loaded));
        assert_eq!(count(&library, "fake_cuda_objects"), 0);
    }
    let absent = DeviceOptions { device: 2, ..common::device_options() };
    assert_eq!(open(&library, &absent).err(), Some(Error::NoDevice { device: 2, count: 2 }));
    assert_eq!(count(&library, "fake_cuda_objects"), 0);
    codes_come_and_go(&library);
    assert_eq!(count(&library, "fake_cuda_objects"), 0);
    a_failed_launch_loses_the_device(&library, &shape, &codes);
}

/// Codes are loaded while others are searched, and dropped with jobs under way; loads fail.
fn codes_come_and_go(library: &str) {
    let device = open(library, &common::device_options()).expect("opens");
    // An answer to this request means that the memory of closed codes is free.
    let objects = || {
        device.usable_bytes().expect("an answer");
        count(library, "fake_cuda_objects")
    };
    let (opened, free) = (objects(), device.usable_bytes().expect("an answer"));
    let first = shape(33);
    let codes = first.codes(3, 700);
    let loaded = device.load(&common::options(), &first.coder(), &codes).expect("fits");
    let (with_one, free_with_one) = (objects(), device.usable_bytes().expect("an answer"));
    // Codes, blocks and staging.
    assert_eq!(with_one, opened + 3);
    assert!(free_with_one < free);
    std::thread::scope(|scope| {
        let search = || {
            let tasks: Vec<Task> = (0..200).map(|n| first.task(n, 700)).collect();
            for (answer, task) in answers(&loaded, &tasks).into_iter().zip(&tasks) {
                assert_eq!(answer, Ok(twin(&codes, task)));
            }
        };
        scope.spawn(search);
        for n in 0..20 {
            let second = shape(20 + n);
            let codes = second.codes(4, 500);
            let loaded = device.load(&common::options(), &second.coder(), &codes).expect("fits");
            let (sender, receiver) = std::sync::mpsc::channel();
            let tasks: Vec<Task> = (0..10).map(|n| second.task(n, 500)).collect();
            for (number, Task { query, job }) in tasks.iter().enumerate() {
                let sender = sender.clone();
                let done = move |answer| sender.send((number, answer)).expect("the test waits");
                loaded.submit(query, job.clone(), Box::new(done));
            }
            drop((loaded, sender));
            for (number, answer) in receiver {
                assert_eq!(answer, Ok(twin(&codes, &tasks[number])));
            }
        }
    });
    assert_eq!(objects(), with_one);
    // Too little memory for blocks behind the codes, and for staging behind the blocks.
    let large =
        CodesOptions { ids_max: 1 << 26, keep_max: 1, budget_bytes: Some(1 << 40), ..common::options() };
    let error = device.load(&large, &first.coder(), &codes).err();
    assert!(matches!(error, Some(Error::Memory { what: "blocks of queries", .. })), "{error:?}");
    assert_eq!(count(library, "fake_cuda_no_staging"), 0);
    let error = device.load(&common::options(), &first.coder(), &codes).err();
    assert!(matches!(error, Some(Error::Memory { what: "staging in host memory", .. })), "{error:?}");
    assert_eq!((objects(), device.usable_bytes()), (with_one, Ok(free_with_one)));
    let task = first.task(1, 700);
    assert_eq!(answer(&loaded, &task), Ok(twin(&codes, &task)));
    drop(loaded);
    assert_eq!((objects(), device.usable_bytes()), (opened, Ok(free)));
}

fn a_failed_launch_loses_the_device(library: &str, shape: &Shape, codes: &[u8]) {
    let options = DeviceOptions { timeout: Duration::from_secs(60), ..common::device_options() };
    let device = open(library, &options).expect("opens");
    let load = || device.load(&common::options(), &shape.coder(), codes);
    let [loaded, other] = [load().expect("fits"), load().expect("fits")];
    assert!(count(library, "fake_cuda_fail") > 0);
    let job = Job { ids: vec![1], keep: 1, exclude: u32::MAX, ..Job::default() };
    let task = Task { query: shape.query(1), job };
    let what = "gather returned FAKE_GONE (999)".to_string();
    assert_eq!(answer(&loaded, &task), Err(Failure::Failed { what }));
    assert!(loaded.is_lost() && other.is_lost());
    assert_eq!([answer(&loaded, &task), answer(&other, &task)], [const { Err(Failure::Lost) }; 2]);
    assert_eq!(load().err(), Some(Error::Lost(Failure::Lost)));
    drop((device, loaded, other));
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
