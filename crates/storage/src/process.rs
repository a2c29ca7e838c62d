//! What a process has once.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that each process makes for itself when it first asks. A forked child has none of its parent's: threads that
/// would end what is under way there do not exist in it.
pub struct PerProcess<T>(AtomicPtr<Held<T>>);

struct Held<T> {
    process: u32,
    value: T,
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess::new()
    }
}

impl<T> PerProcess<T> {
    /// No value yet.
    pub const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(ptr::null_mut()))
    }
}

impl<T: Send + Sync> PerProcess<T> {
    /// The value of this process, which `make` makes where there is none.
    pub fn get(&'static self, make: impl Fn() -> T) -> &'static T {
        let process = std::process::id();
        loop {
            let known = self.0.load(Ordering::Acquire);
            // SAFETY: it is null, or was leaked below and is never freed.
            if let Some(held) = unsafe { known.as_ref() }.filter(|held| held.process == process) {
                return &held.value;
            }
            let made = Box::into_raw(Box::new(Held { process, value: make() }));
            if self.0.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: it comes from `into_raw`, and no other thread has seen it.
                drop(unsafe { Box::from_raw(made) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn all_threads_have_one_value() {
        static VALUE: PerProcess<AtomicUsize> = PerProcess::new();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| VALUE.get(AtomicUsize::default).fetch_add(1, Ordering::SeqCst));
            }
        });
        assert_eq!(VALUE.get(AtomicUsize::default).load(Ordering::SeqCst), 8);
    }
}
