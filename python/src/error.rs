//! Conversion of engine errors to the exceptions of `stratann._errors`.

use pyo3::prelude::*;
use stratann_params::GROUPS;
use stratann_storage::{Error, ErrorKind};

/// Options that have another form in Python than their name.
const FORMS: [(&str, &str); 9] = [
    ("--ram-budget ", "ram_budget="),
    ("--search-budget ", "search_budget="),
    ("--plan ", "plan="),
    ("--on-bad-row ", "on_bad_row="),
    ("--resume", "resume=True"),
    ("--force", "force=True"),
    ("--vectors", "vector_column"),
    // Not in a command that a message quotes.
    ("for --payload;", "for payload;"),
    ("leave --payload out", "leave payload out"),
];

/// Replaces option names in a message. Options follow a space; similar text in a path is not changed.
pub(crate) fn in_python(message: &str) -> String {
    let formed = FORMS.iter().fold(format!(" {message}"), |text, (option, argument)| {
        text.replace(&format!(" {option}"), &format!(" {argument}"))
    });
    let mut words: Vec<String> = formed.split(' ').map(String::from).collect();
    for word in &mut words {
        let Some(option) = word.strip_prefix("--") else { continue };
        let end = option.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(option.len());
        let (name, rest) = option.split_at(end);
        let known = GROUPS.iter().find_map(|group| {
            let param = group.params.iter().find(|p| group.option(p).as_deref() == Some(name))?;
            Some(param.name)
        });
        if let Some(known) = known {
            *word = format!("{known}{rest}");
        }
    }
    words.join(" ")[1..].to_owned()
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
