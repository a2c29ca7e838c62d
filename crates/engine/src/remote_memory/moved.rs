//! Memory nodes that have come back at another address.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Present addresses of memory nodes, by those with which an index was opened. Copies share one table.
///
/// Connections over TCP look here whenever they dial. A node is still known by its number and epoch: another one at the
/// new address is an error.
#[derive(Clone, Debug, Default)]
pub struct Moved(Arc<Mutex<BTreeMap<String, String>>>);

impl Moved {
    /// Sets the present address of the node that was `opened` at another one.
    pub fn set(&self, opened: &str, now: &str) {
        let mut table = self.0.lock().unwrap_or_else(|e| e.into_inner());
        match opened == now {
            true => table.remove(opened),
            false => table.insert(opened.into(), now.into()),
        };
    }

    /// The present address of the node that was `opened` at this one.
    pub fn now(&self, opened: &str) -> String {
        let table = self.0.lock().unwrap_or_else(|e| e.into_inner());
        table.get(opened).map_or(opened, String::as_str).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_may_move_and_come_back() {
        let moved = Moved::default();
        let copy = moved.clone();
        moved.set("a:1", "b:2");
        assert_eq!((copy.now("a:1"), copy.now("c:3")), ("b:2".into(), "c:3".into()));
        moved.set("a:1", "a:1");
        assert_eq!(copy.now("a:1"), "a:1");
    }
}
