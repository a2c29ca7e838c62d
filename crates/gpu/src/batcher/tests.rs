//! Order of what the batcher does.

use super::*;
use crate::common::{self, Shape};
use crate::emulated::{Emulator, Faults};
use crate::job::{Job, Prepared};
use crate::limits::Limits;
use stratann_kernel::bits::Layout;

#[test]
fn batches_and_requests_take_turns() {
    let Some(emulator) = common::opened(Emulator::open(Faults::default())) else { return };
    let layout = Layout::even(8, 2, 0, false).expect("a layout");
    let shape = Shape { seed: 1, layout, centroids: 0, ip: false, scale: 1.0 };
    let limits = Limits::new(&common::options(), &shape.coder(), 100);
    let shared = Shared::new(2);
    shared.state().queue.add(7, 8, Arc::default());
    for _ in 0..3 {
        let job = Job { ids: vec![1], keep: 1, exclude: u32::MAX, ..Job::default() };
        let job = Prepared::new(&shape.query(1), job, &limits).expect("fits").expect("keeps something");
        shared.push(7, job, Reply::new(Box::new(|_| ())));
    }
    let _receivers = [0; 4].map(|_| shared.request(Action::UsableBytes));
    let options = DeviceOptions { batch_max: 1, batch_wait: Duration::ZERO, ..common::device_options() };
    let mut batcher = Batcher::new(Box::new(emulator), shared, options);
    let order = [0; 7].map(|_| match batcher.next(&[None, None]) {
        Next::Jobs(..) => 'b',
        Next::Request(_) => 'r',
        _ => '?',
    });
    assert_eq!(order, ['b', 'r', 'b', 'r', 'b', 'r', 'r']);
}
