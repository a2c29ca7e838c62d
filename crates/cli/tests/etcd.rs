//! Servers that find each other by etcd alone: a real one, where the program `etcd` is installed.
#![allow(missing_docs)]

mod common;

use std::path::PathBuf;

use common::*;
use serde_json::{Value, json as value};
use stratann_testing::etcd::Etcd;

struct Place {
    data: Data,
    index: PathBuf,
    etcd: Etcd,
}

const ASKED: [&str; 4] = ["--search-list", "30", "--width", "1"];

impl Place {
    /// A server without a number, and without anybody's address.
    fn serve(&self, name: &str) -> Running {
        let path = self.data.path(&format!("{name}.toml"));
        let text = format!(
            "store = \"store\"\ndata = \"data-{name}\"\netcd = [\"http://127.0.0.1:{}\"]\ncluster = \"tests\"\n\
             listen = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\nthreads = 1\nsecret_file = \"secret\"\n",
            self.etcd.ports[0]
        );
        std::fs::write(&path, text).unwrap();
        start(&path)
    }

    /// All queries at these servers, which must answer as the index does.
    fn check(&self, servers: &[&Running]) {
        let (here, there) = (self.data.path("here"), self.data.path("there"));
        let queries = arg(&self.data.queries);
        if !here.exists() {
            json(&[&["search", arg(&self.index), queries, "-o", arg(&here)], &ASKED[..]].concat());
        }
        let all = servers.iter().map(|s| s.address()).collect::<Vec<_>>().join(",");
        let found = json(
            &[&["search", "--connect", &all, queries, "-o", arg(&there), "--force"], &ASKED[..]].concat(),
        );
        assert_eq!(found["runs"][0]["failed_queries"], 0, "{found}");
        assert_eq!(read_answers(&here), read_answers(&there));
    }
}

fn live(server: &Running) -> Value {
    get(server.address(), "/v1/status").1["live"].clone()
}

fn place() -> Option<Place> {
    let data = Data::new(2000, 16, "f32");
    let etcd = Etcd::start(data.path("etcd"))?;
    let index = data.build("graph", &["--nodes-per-block", "8", "--calibration-queries", "0"]);
    let folder = spread(&data, &index, "spread", &["--servers", "3", "--replicas", "2"]);
    json(&["cluster", "publish", arg(&folder), arg(&data.path("store"))]);
    std::fs::write(data.path("secret"), "a secret of this test").unwrap();
    Some(Place { data, index, etcd })
}

#[test]
fn servers_found_by_etcd_alone_outlive_it_and_each_other() {
    let Some(mut place) = place() else { return };
    let servers: Vec<Running> = ["a", "b", "c"].iter().map(|name| place.serve(name)).collect();
    let numbers: Vec<&Value> = servers.iter().map(|s| &s.ready["server"]).collect();
    assert_eq!(numbers, [&value!(0), &value!(1), &value!(2)], "each takes the lowest free number");
    let whole = value!([true, true, true]);
    wait_for("the cluster", || servers.iter().all(|s| live(s) == whole));
    wait_for("all keys", || place.etcd.keys("servers") == [0, 1, 2]);
    place.check(&servers.iter().collect::<Vec<_>>());

    // Without etcd everything goes on with what is known.
    place.etcd.kill();
    for _ in 0..3 {
        place.check(&servers.iter().collect::<Vec<_>>());
    }
    assert!(servers.iter().all(|s| live(s) == whole));
    place.etcd.again();
    wait_for("all keys again", || place.etcd.keys("servers") == [0, 1, 2]);

    // One that says nothing any more loses its lease and its place, and gets both back.
    servers[2].signal(libc::SIGSTOP);
    wait_for("the end of its lease", || place.etcd.keys("servers") == [0, 1]);
    let without = value!([true, true, false]);
    wait_for("word of its silence", || servers[..2].iter().all(|s| live(s) == without));
    place.check(&[&servers[0], &servers[1]]);
    servers[2].signal(libc::SIGCONT);
    wait_for("its return", || {
        place.etcd.keys("servers") == [0, 1, 2] && servers.iter().all(|s| live(s) == whole)
    });
    place.check(&servers.iter().collect::<Vec<_>>());

    // One that dies is replaced by another, under its number and at another address.
    let [first, second, third] = <[Running; 3]>::try_from(servers).ok().unwrap();
    third.signal(libc::SIGKILL);
    drop(third);
    wait_for("the end of its keys", || {
        place.etcd.keys("servers") == [0, 1] && place.etcd.keys("claims") == [0, 1]
    });
    let heir = place.serve("d");
    assert_eq!(heir.ready["server"], 2);
    wait_for("the new server", || [&first, &second, &heir].iter().all(|s| live(s) == whole));
    place.check(&[&first, &second, &heir]);

    // All are stopped, and come back without etcd and without the store, by what they have on their disks.
    drop((first, second, heir));
    place.etcd.kill();
    let (store, away) = (place.data.path("store"), place.data.path("away"));
    std::fs::rename(&store, &away).unwrap();
    std::fs::write(&store, "").unwrap();
    let servers: Vec<Running> = ["a", "b", "d"].iter().map(|name| place.serve(name)).collect();
    let numbers: Vec<&Value> = servers.iter().map(|s| &s.ready["server"]).collect();
    assert_eq!(numbers, [&value!(0), &value!(1), &value!(2)], "each has the number of its blocks");
    place.etcd.again();
    std::fs::remove_file(&store).unwrap();
    std::fs::rename(&away, &store).unwrap();
    wait_for("the cluster", || servers.iter().all(|s| live(s) == whole));
    place.check(&servers.iter().collect::<Vec<_>>());
}
