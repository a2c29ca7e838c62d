//! Options of a `flat`.

/// It has none.
pub type Options = ();
/// It has none.
pub type Switches = ();
