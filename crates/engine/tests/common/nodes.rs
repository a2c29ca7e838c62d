//! Memory nodes in this process.
#![allow(dead_code)]

use std::sync::Arc;

use stratann_storage::remote_memory::{Credentials, Node, NodeId, NodeOptions, Place};

/// Starts so many nodes of regions of this size.
pub fn nodes(count: u8, region_bytes: u64) -> Vec<Node> {
    (0..count).map(|number| node(number, region_bytes)).collect()
}

fn node(number: u8, region_bytes: u64) -> Node {
    Node::start(NodeOptions {
        node: NodeId(number),
        region_bytes,
        listen: "127.0.0.1:0".parse().unwrap(),
        secret: vec![7; 32],
        tls: None,
        place: Place::Memory,
        connections_max: 64,
        log: Arc::new(|_| {}),
    })
    .unwrap()
}

/// The key of these nodes.
pub fn credentials() -> Credentials {
    Credentials::new(vec![7; 32], None)
}

pub fn addresses(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(|node| node.address().to_string()).collect()
}
