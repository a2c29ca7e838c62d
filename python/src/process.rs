//! State that belongs to the process that made it: a child that is forked has neither its threads nor what they locked.

use pyo3::prelude::*;

use crate::error;

/// A value that only the process that made it may use. A child leaves its copy as it is: to drop it would wait for
/// threads of the parent.
pub(crate) struct Own<T> {
    process: u32,
    value: Option<T>,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Own<T> {
        Own { process: std::process::id(), value: Some(value) }
    }

    /// The value; `None` in another process.
    pub(crate) fn here(&self) -> Option<&T> {
        self.value.as_ref().filter(|_| self.process == std::process::id())
    }

    /// The value.
    ///
    /// # Errors
    /// `InputError` in another process; `what` names the value.
    pub(crate) fn get(&self, py: Python<'_>, what: &str) -> PyResult<&T> {
        self.here().ok_or_else(|| {
            let why = "belongs to the process that this one was forked from; open it again in this one";
            error::input(py, &format!("{what} {why}"))
        })
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.value.take());
        }
    }
}
