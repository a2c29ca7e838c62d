//! Threads of a device. A test of its own: it counts the threads of the process.

mod common;

use common::{Shape, Task, answers, device_options, open_device, options, twin};
use stratann_gpu::{CodesOptions, Device, DeviceCodes, DeviceOptions, Error, Failure, Faults, Job, Ranked};
use stratann_kernel::bits::Layout;

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, |tasks| tasks.count())
}

#[test]
fn codes_start_and_end_no_thread() {
    let Some(device) = open_device(&device_options(), &Faults::default()) else { return };
    let before = threads();
    let shape = |n: usize| {
        let layout = Layout::even(10 + n, 1 + n % 8, 0, false).expect("a layout");
        Shape { seed: 7, layout, centroids: 0, ip: false, scale: 1.0 }
    };
    let load = |n| {
        let (shape, codes) = (shape(n), shape(n).codes(n as u64, 300));
        let loaded = device.load(&options(), &shape.coder(), &codes).expect("fits");
        let task: Task = shape.task(1, 300);
        assert_eq!(answers(&loaded, std::slice::from_ref(&task)), [Ok(twin(&codes, &task))]);
        assert_eq!(threads(), before);
        loaded
    };
    let mut all: Vec<DeviceCodes> = (0..10).map(load).collect();
    // Others take the places of some.
    for (n, place) in all.iter_mut().enumerate() {
        *place = load(10 + n);
    }
    drop(all);
    assert_eq!(threads(), before);
}
