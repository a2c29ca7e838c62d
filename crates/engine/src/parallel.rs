//! Work on all threads of the pool, in tasks of several items each.
//!
//! Iterators of rayon are compiled once more for each closure. Here one loop over tasks serves all closures.

use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rayon::prelude::*;
use stratann_storage::Result;

/// Tasks for each thread: enough that threads end at about the same time.
const TASKS_PER_THREAD: usize = 8;

/// Items of a task, and then their results.
struct Task<I, T>(Mutex<(Vec<I>, Vec<T>)>);

/// The cores that this process may use. The kernel is asked once: it answers from several files, which takes longer
/// than a search.
pub(crate) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

/// Returns the result of `of` for each item, in order.
pub(crate) fn map<I: Send, T: Send>(
    items: impl IntoIterator<Item = I>,
    of: impl Fn(I) -> T + Sync,
) -> Vec<T> {
    map_with(items, || (), |(), item| of(item))
}

/// As [`map`], with scratch memory for each task.
pub(crate) fn map_with<I: Send, S, T: Send>(
    items: impl IntoIterator<Item = I>,
    scratch: impl Fn() -> S + Sync,
    of: impl Fn(&mut S, I) -> T + Sync,
) -> Vec<T> {
    let tasks: Vec<Task<I, T>> = tasks_of(items.into_iter().collect());
    run(tasks.len(), &|number| {
        let items = tasks[number].items();
        let (mut scratch, mut results) = (scratch(), Vec::with_capacity(items.len()));
        for item in items {
            results.push(of(&mut scratch, item));
        }
        tasks[number].end(results);
    });
    let mut all = Vec::with_capacity(tasks.iter().map(Task::results).sum());
    for Task(task) in tasks {
        all.append(&mut task.into_inner().unwrap_or_else(PoisonError::into_inner).1);
    }
    all
}

/// Calls `of` for each item.
pub(crate) fn for_each<I: Send>(items: impl IntoIterator<Item = I>, of: impl Fn(I) + Sync) {
    map(items, of);
}

/// Returns the result of `of` for each item, in order.
///
/// # Errors
/// The first in the order of items of those that happened; after one, items may be left out.
pub(crate) fn try_map<I: Send, T: Send>(
    items: impl IntoIterator<Item = I>,
    of: impl Fn(I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    try_map_with(items, || (), |(), item| of(item))
}

/// As [`try_map`], with scratch memory for each task.
///
/// # Errors
/// As of [`try_map`].
pub(crate) fn try_map_with<I: Send, S, T: Send>(
    items: impl IntoIterator<Item = I>,
    scratch: impl Fn() -> S + Sync,
    of: impl Fn(&mut S, I) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let has_failed = AtomicBool::new(false);
    let done = map_with(items, scratch, |scratch, item| {
        if has_failed.load(Ordering::Relaxed) {
            return None;
        }
        let done = of(scratch, item);
        has_failed.fetch_or(done.is_err(), Ordering::Relaxed);
        Some(done)
    });
    done.into_iter().flatten().collect()
}

impl<I, T> Task<I, T> {
    fn items(&self) -> Vec<I> {
        take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner).0)
    }

    fn end(&self, results: Vec<T>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 = results;
    }

    fn results(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.len()
    }
}

fn tasks_of<I, T>(mut items: Vec<I>) -> Vec<Task<I, T>> {
    let count = TASKS_PER_THREAD * rayon::current_num_threads();
    let size = items.len().div_ceil(count).max(1);
    let mut tasks = Vec::with_capacity(items.len().div_ceil(size));
    // From the end, so that no item is moved twice.
    while !items.is_empty() {
        let last = (items.len() - 1) / size * size;
        tasks.push(Task(Mutex::new((items.split_off(last), Vec::new()))));
    }
    tasks.reverse();
    tasks
}

fn run(tasks: usize, of: &(dyn Fn(usize) + Sync)) {
    (0..tasks).into_par_iter().with_max_len(1).for_each(of);
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_storage::Error;

    #[test]
    fn results_are_in_the_order_of_items() {
        for count in [0, 1, 2, 31, 32, 33, 1000] {
            let all = map_with(0..count, Vec::new, |seen, item| {
                seen.push(item);
                (item * 2, seen.len())
            });
            assert_eq!(
                all.iter().map(|one| one.0).collect::<Vec<_>>(),
                (0..count).map(|i| i * 2).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn slices_are_filled_in_parallel() {
        let mut out = vec![0; 1000];
        try_map(out.chunks_mut(7).enumerate(), |(number, out)| {
            out.fill(number);
            Ok(())
        })
        .unwrap();
        assert!(out.iter().enumerate().all(|(at, &number)| number == at / 7));
    }

    #[test]
    fn an_error_ends_the_work() {
        let done = Mutex::new(0);
        let failed = try_map(0..100_000, |item| {
            *done.lock().unwrap() += 1;
            if item == 5 { Err(Error::bad_input("five")) } else { Ok(()) }
        });
        assert_eq!(failed.unwrap_err().to_string(), "five");
        assert!(*done.lock().unwrap() < 100_000);
    }
}
