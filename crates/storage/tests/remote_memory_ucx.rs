//! The ucx back end over the transports of libucp that every machine has.

use std::process::Command;
use std::sync::Arc;

use stratann_storage::remote_memory::{
    Credentials, Node, NodeId, NodeOptions, Place, back_ends, conformance, connect_one,
};

/// Names the transports in the process that tests them.
const INNER: &str = "STRATANN_TEST_UCX";

fn transports(names: &str) {
    let refusal = back_ends().into_iter().find(|b| b.name == "ucx").unwrap().refusal;
    if let Some(why) = refusal {
        stratann_testing::leave_out(stratann_testing::Need::Ucx, &why);
        return;
    }
    // The library reads its environment once, so each set of transports has its own process.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["in_a_process_of_its_own", "--exact", "--nocapture"])
        .env(INNER, "1")
        .env("UCX_TLS", names)
        .env("UCX_HANDLE_ERRORS", "none")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.contains("ucx conforms"), "{names}: {:?}: {said}", output.status);
}

#[test]
fn ucx_conforms_over_tcp() {
    transports("tcp");
}

#[test]
fn ucx_conforms_over_shared_memory() {
    transports("shm");
}

#[test]
fn in_a_process_of_its_own() {
    if std::env::var_os(INNER).is_none() {
        return;
    }
    let node = Node::start(NodeOptions {
        node: NodeId(0),
        region_bytes: 4 << 20,
        listen: "127.0.0.1:0".parse().unwrap(),
        secret: vec![7; 32],
        tls: None,
        place: Place::Ucx,
        connections_max: 64,
        log: Arc::new(|_| {}),
    })
    .unwrap();
    let address = format!("ucx:{}", node.address());
    let credentials = Credentials::new(vec![7; 32], None);
    conformance::check(&|| connect_one(&address, &credentials).unwrap());
    // The same region by the thread of the node.
    let tcp = node.address().to_string();
    let mut one = connect_one(&address, &credentials).unwrap();
    let mut other = connect_one(&tcp, &credentials).unwrap();
    assert_eq!(one.backend(), "ucx");
    let before = one.fetch_add(0, 5).unwrap();
    assert_eq!(other.fetch_add(0, 0), Ok(before.wrapping_add(5)));
    eprintln!("ucx conforms");
}
