//! Choice of the next batch.

use super::*;
use crate::common;
use crate::job::Rows;
use crate::limits::Limits;
use stratann_kernel::DType;
use stratann_kernel::bits::Layout;

/// A queue of codes with one, two and three blocks, and options under which a job waits for others for an hour.
fn queue() -> (Queue, DeviceOptions) {
    let mut queue = Queue::default();
    for blocks in 1..=3 {
        queue.add(u64::from(blocks), blocks, Arc::default());
    }
    (queue, DeviceOptions { batch_max: 4, batch_wait: Duration::from_secs(3600), ..DeviceOptions::default() })
}

/// A job of vectors, or of codes.
fn waiting(has_vectors: bool) -> Waiting {
    let layout = Layout::even(8, 2, 0, false).expect("a layout");
    let shape = common::Shape { seed: 1, layout, centroids: 0, ip: false, scale: 1.0 };
    let options = crate::CodesOptions { rows_bytes_max: 1000, ..common::options() };
    let limits = Limits::new(&options, &shape.coder(), 100);
    let rows = Rows { dtype: DType::U8, ip: false, query: vec![1; 8], rows: vec![2; 8], keep: 1 };
    let job = crate::Job { ids: vec![1], keep: 1, exclude: u32::MAX, ..Default::default() };
    let prepared = match has_vectors {
        true => Prepared::of_rows(rows, &limits),
        false => Prepared::new(&shape.query(1), job, &limits),
    };
    Waiting::new(prepared.expect("fits").expect("keeps something"), Reply::new(Box::new(|_| ())))
}

fn push(queue: &mut Queue, codes: CodesNumber, has_vectors: bool) {
    assert!(queue.push(codes, waiting(has_vectors)).is_none());
}

/// Codes, blocks and kind of the next batch; `None` while nothing is due.
fn take(queue: &mut Queue, options: &DeviceOptions) -> Option<(CodesNumber, Vec<u32>, bool)> {
    let Due::Now(due) = queue.take(options, false) else { return None };
    let kinds: Vec<bool> = due.jobs.iter().map(|(_, waiting)| waiting.job.has_vectors()).collect();
    assert!(kinds.iter().all(|kind| *kind == kinds[0]), "a batch of two kinds");
    Some((due.codes, due.jobs.iter().map(|job| job.0).collect(), kinds[0]))
}

#[test]
fn a_batch_is_of_the_codes_and_the_kind_of_the_oldest_job() {
    let (mut queue, options) = queue();
    let options = DeviceOptions { batch_wait: Duration::ZERO, ..options };
    for (codes, has_vectors) in [(2, true), (3, false), (2, false), (3, true), (3, false)] {
        push(&mut queue, codes, has_vectors);
    }
    assert_eq!(take(&mut queue, &options), Some((2, vec![0], true)));
    assert_eq!(take(&mut queue, &options), Some((3, vec![0, 1], false)));
    assert_eq!(take(&mut queue, &options), Some((2, vec![1], false)));
    assert_eq!(take(&mut queue, &options), Some((3, vec![2], true)));
    assert!(queue.is_empty() && matches!(queue.take(&options, false), Due::Never));
}

#[test]
fn codes_without_a_free_block_do_not_hold_up_others() {
    let (mut queue, options) = queue();
    for _ in 0..3 {
        push(&mut queue, 1, false);
    }
    assert_eq!(take(&mut queue, &options), Some((1, vec![0], false)));
    // The oldest jobs have no block. A batch that has all blocks of its codes does not wait either.
    assert!(matches!(queue.take(&options, false), Due::Never));
    push(&mut queue, 2, false);
    assert!(matches!(queue.take(&options, false), Due::In(_)));
    push(&mut queue, 2, false);
    assert_eq!(take(&mut queue, &options), Some((2, vec![0, 1], false)));
    queue.release(1, [0].into_iter());
    assert_eq!(take(&mut queue, &options), Some((1, vec![0], false)));
}

#[test]
fn closed_codes_are_removed_behind_their_last_job() {
    let (mut queue, options) = queue();
    push(&mut queue, 2, false);
    push(&mut queue, 3, false);
    queue.close(2);
    assert!(queue.push(2, waiting(false)).is_some() && queue.push(9, waiting(false)).is_some());
    assert!(queue.has_closed() && queue.remove_closed().is_none());
    // No others can come: the job waits no longer, while that of open codes does.
    assert_eq!(take(&mut queue, &options), Some((2, vec![0], false)));
    assert!(take(&mut queue, &options).is_none() && queue.remove_closed().is_none());
    queue.release(2, [0].into_iter());
    assert_eq!((queue.remove_closed(), queue.has_closed()), (Some(2), false));
    assert_eq!(queue.drain().len(), 1);
    assert!(queue.is_empty());
}
