//! Conversion of engine errors to the exceptions of `stratann._errors`.

use pyo3::prelude::*;
use stratann_storage::{Error, ErrorKind};

/// Options as the engine's messages name them, and their Python names. Longer names come first.
const OPTIONS: [(&str, &str); 21] = [
    ("--ram-budget ", "ram_budget="),
    ("--ram-budget", "ram_budget"),
    ("--search-budget ", "search_budget="),
    ("--search-budget", "search_budget"),
    ("--search-list", "search_list"),
    ("--nprobe", "nprobe"),
    ("--early-stop", "early_stop"),
    ("--recall", "recall"),
    ("--clusters", "clusters"),
    ("--plan ", "plan="),
    ("--build-list", "build_list"),
    ("--code-bytes", "code_bytes"),
    ("--head-share", "head_share"),
    ("--on-bad-row ", "on_bad_row="),
    ("--degree", "degree"),
    ("--nodes-per-block", "nodes_per_block"),
    ("--cells", "cells"),
    ("--alpha", "alpha"),
    ("--io", "io"),
    ("--resume", "resume=True"),
    ("--force", "force=True"),
];

/// Replaces option names in a message. Options follow a space; similar text in a path is not changed.
pub(crate) fn in_python(message: &str) -> String {
    let text = OPTIONS.iter().fold(format!(" {message}"), |text, (option, argument)| {
        text.replace(&format!(" {option}"), &format!(" {argument}"))
    });
    text[1..].to_owned()
}

/// Creates an exception of `stratann._errors` by name.
pub(crate) fn named(py: Python<'_>, class: &str, message: &str) -> PyErr {
    let made = py.import("stratann._errors").and_then(|m| m.getattr(class)).and_then(|c| c.call1((message,)));
    made.map_or_else(|e| e, PyErr::from_value)
}

/// Creates an error of wrong input, option or usage.
pub(crate) fn input(py: Python<'_>, message: &str) -> PyErr {
    named(py, "InputError", message)
}

/// Converts an engine error.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    let message = in_python(&error.message);
    match error.kind {
        ErrorKind::BadInput => named(py, "InputError", &message),
        ErrorKind::Budget => named(py, "BudgetError", &message),
        ErrorKind::Corrupt => named(py, "CorruptIndexError", &message),
        ErrorKind::Io => named(py, "DiskError", &message),
        ErrorKind::Interrupted => pyo3::exceptions::PyKeyboardInterrupt::new_err(message),
    }
}

/// Adds a note on how to resume to an exception that ended the work (Python 3.11 shows it; older ones have no notes).
pub(crate) fn with_note(py: Python<'_>, raised: PyErr, error: &Error) -> PyErr {
    // Without `add_note` the exception has no note.
    let _ = raised.value(py).call_method1("add_note", (in_python(&error.message),));
    raised
}
