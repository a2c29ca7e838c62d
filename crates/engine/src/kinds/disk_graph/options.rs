//! Options of a `disk-graph`.

/// Techniques of a `disk-graph` that may be switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphSwitches {
    /// Whether the head graph gives the first candidates; otherwise the medoid does.
    pub head: bool,
    /// Whether all nodes of a block are used, or only those asked for.
    pub whole_blocks: bool,
    /// Fruitless reads in a row after which a query stops; `None` leaves it to the effort, 0 turns it off.
    pub patience: Option<u32>,
}

impl Default for GraphSwitches {
    fn default() -> Self {
        GraphSwitches { head: true, whole_blocks: true, patience: None }
    }
}
