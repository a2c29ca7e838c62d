//! Writes the seeds of the fuzz targets whose content a fuzzer hardly finds by itself:
//! `cargo run --example seeds` in this folder.

use std::path::Path;

use stratann_core::format::adjacency::{IDS, NEIGHBOURS, RANKS};
use stratann_core::format::gaps;
use stratann_core::query::wire::{Carry, encode};
use stratann_core::query::{Arrival, Budget, Mode, Params, QueryState, Scratch, Step};
use stratann_fuzz::place::{Which, place, rows};
use stratann_fuzz::{payloads, run};

fn main() {
    let states = states();
    for (i, (choice, body)) in states.iter().enumerate() {
        write("query_state", &format!("state-{i}"), &[&[*choice], body]);
    }
    frames(&states);
    lists();
    postings();
    datasets();
    write("learned", "two-hot", &[&learned()]);
    write("inverted_list", "two-members", &[&[0], &list_codes()]);
    write("inverted_list", "record", &[&[1], &[3; 14]]);
    write("edges", "two", &[&[3], &2u32.to_le_bytes(), &1f32.to_le_bytes(), &[0; 16], &[1, 2, 0, 0]]);
    write("block", "two-nodes", &[&[0], &block(0)]);
    write("block", "coded", &[&[2], &block(3)]);
    changes();
    memory_frames();
    regions();
    link();
    http();
    for (target, name, content) in payloads::seeds() {
        write(target, &name, &[&content]);
    }
}

/// Operations of a request to a memory node.
fn memory_frames() {
    let word = |n: u64| n.to_le_bytes();
    let read = [&[1][..], &word(64), &8u32.to_le_bytes()].concat();
    let write = [&[2][..], &word(64), &3u32.to_le_bytes(), b"abc"].concat();
    let atomics = [&[3][..], &word(8), &word(1), &[4], &word(8), &word(1), &word(2)].concat();
    write_memory_frame("facts", 1, &[0]);
    write_memory_frame("read", 1, &read);
    write_memory_frame("write-atomics", 3, &[write, atomics].concat());
}

fn write_memory_frame(name: &str, count: u8, body: &[u8]) {
    write("memory_frame", name, &[&[1, count], body]);
}

/// One change of each part of a region, and none.
fn regions() {
    let parts = ["superblock", "words", "descriptor", "records", "hnsw", "hnsw-norms"];
    for (choice, part) in [0, 1, 2, 3, 69, 4].into_iter().zip(parts) {
        write("region", part, &[&[choice, 1]]);
        write("region", &format!("{part}-changed"), &[&[choice, 1, 3, 24, 0, 0, 0, 0, 9]]);
    }
}

/// A few changes of each file, and of each manifest.
fn changes() {
    let targets = [
        ("graph_files", 24),
        ("list_files", 24),
        ("grid_files", 12),
        ("gpu_files", 22),
        ("remote_files", 8),
        ("shard_files", 12),
        ("manifest", 18),
    ];
    for (target, choices) in targets {
        for choice in 0..choices {
            let change = |i: u8| [i % 8, i.wrapping_mul(37), i.wrapping_mul(11), 0, 1, i, choice];
            write(
                target,
                &format!("change-{choice}"),
                &[&[choice, 1], &change(3), &change(choice), &change(5)],
            );
        }
    }
    for (number, kind) in (0..).zip([1, 3, 5, 9]) {
        write("profile", &format!("change-{number}"), &[&[1, number * 5, 0, kind, 9, 9, 0, 0, 0, 0, 0, 0]]);
    }
}

fn write(target: &str, name: &str, parts: &[&[u8]]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join(name), parts.concat()).expect("a seed");
}

/// Bodies of states in the middle of their way, with the choice of their index.
fn states() -> Vec<(u8, Vec<u8>)> {
    let mut out = Vec::new();
    for (which, choice, carry) in [
        (Which::Flat, 0, Carry::Ids),
        (Which::Graph, 0, Carry::Ids),
        (Which::CodedGraph, 7, Carry::Distances),
        (Which::Graphs, 0, Carry::Ids),
        (Which::Divided, 1, Carry::Ids),
        (Which::Gpu, 0, Carry::Ids),
    ] {
        for steps in [0, 3] {
            out.push((choice, body(which, carry, steps)));
        }
    }
    out
}

fn body(which: Which, carry: Carry, steps: usize) -> Vec<u8> {
    let place = place(which);
    let view = place.index().view();
    let params = Params { width: 1, approach_width: 1, mode: Mode::Barrier, ..run::params(&view) };
    let (query, mut scratch) = (run::query(), Scratch::default());
    let mut state = QueryState::new(params, Budget::default());
    scratch.prepare(&view, &query);
    let mut asked = Vec::new();
    for _ in 0..steps {
        let arrivals: Vec<Arrival<'_>> = asked
            .iter()
            .map(|(tag, read)| Arrival { tag: *tag, what: run::arrival(&view, place.data(), read) })
            .collect();
        if state.step(&view, &mut scratch, &arrivals) == Step::Done {
            break;
        }
        asked = run::wanted(&state);
    }
    let mut out = Vec::new();
    encode(&state, carry, &mut out);
    out.split_off(16)
}

/// Frames after the build: type, load, origin, incarnation, number, and what the type has.
fn frames(states: &[(u8, Vec<u8>)]) {
    let frame = |choice: u8, name: &str, body: &[u8]| {
        write("frame", name, &[&[choice], &(body.len() as u16).to_le_bytes(), body]);
    };
    let head = |kind: u8, origin: u8| {
        [&[kind, 5, origin][..], &1u32.to_le_bytes(), &1u64.to_le_bytes(), &[0]].concat()
    };
    let visited = 3u64.to_le_bytes();
    for (choice, state) in [(0, &states[0].1), (1, &states[2].1), (2, &states[4].1), (3, &states[6].1)] {
        let vector = rows(1, 2);
        let length = (vector.len() as u32).to_le_bytes();
        let baton = [&head(0, 0), &visited[..], &900_000u32.to_le_bytes(), &length, &vector, state].concat();
        frame(choice, &format!("baton-{choice}"), &baton);
        frame(choice, &format!("answer-{choice}"), &[&head(1, 1), &visited[..], state].concat());
    }
    frame(1, "status", &[&[3, 5], &7u64.to_le_bytes()[..], &[1]].concat());
    frame(5, "partial", &[&head(4, 1), &0u32.to_le_bytes()[..], &[1, 0x80, 0x80, 4, 9]].concat());
}

fn lists() {
    let ids: Vec<u32> = (0..30).map(|i| i * i + 3).collect();
    for (choice, coding) in (0..).zip([NEIGHBOURS, RANKS, IDS]) {
        let mut bytes = vec![choice];
        coding.encode(&ids, &mut bytes);
        write("adjacency", &format!("list-{choice}"), &[&bytes]);
    }
}

/// Lists of ids, and lists of two members as baselines read them.
fn postings() {
    let (mut few, mut many) = (Vec::new(), Vec::new());
    gaps::encode(&[3, 4, 90, 91, 5000], &mut few);
    gaps::encode(&(0..60).map(|i| 7 * i).collect::<Vec<u32>>(), &mut many);
    write("postings", "few", &[&[0, 20, few.len() as u8], &few, &many]);
    write("postings", "many", &[&[0, 200, 0], &many]);
    for choice in 0..4 {
        write("posting_list", &format!("two-{choice}"), &[&[choice], &2u32.to_le_bytes(), &[1; 60]]);
    }
}

fn datasets() {
    let counts = |rows: u32, dim: u32| [rows.to_le_bytes(), dim.to_le_bytes()].concat();
    let header = |descr: &str, shape: &str| {
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        [b"\x93NUMPY\x01\0", &(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat()
    };
    write("dataset", "fbin", &[&[0], &counts(2, 2), &[1; 16]]);
    write("dataset", "u8bin", &[&[2], &counts(3, 2), &[1, 2, 3, 4, 5, 6]]);
    write("dataset", "fvecs", &[&[4], &2u32.to_le_bytes(), &[1; 8], &2u32.to_le_bytes(), &[2; 8]]);
    write("dataset", "npy", &[&[6], &header("|u1", "(3, 2)"), &[1, 2, 3, 4, 5, 6]]);
    write("dataset", "ids", &[&[7], &counts(2, 1), &[1; 8], &[2; 8]]);
    write("dataset", "ids-npy", &[&[8], &header("<i8", "(2,)"), &[1; 8], &[2; 8]]);
    write("ground_truth", "ibin", &[&[0], &counts(2, 1), &[1; 8], &[2; 8]]);
    write("ground_truth", "ivecs", &[&[1], &counts(1, 5), &counts(1, 6)]);
}

/// Bytes after the build: counts, epochs, queries, hot members with scores, visits of six clusters.
fn learned() -> Vec<u8> {
    let words: [u32; 16] = [2, 6, 1, 0, 50, 0, 3, 9, 17, 8, 1, 2, 3, 4, 5, 6];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Bytes after the number of a list with two members.
fn list_codes() -> Vec<u8> {
    let numbers = [1f32, 0.5, 0.25].map(f32::to_le_bytes).concat();
    [&100u32.to_le_bytes()[..], &2u32.to_le_bytes(), &numbers, &[0; 8], &[1; 8], &[2; 8]].concat()
}

/// Bytes after the number of a block with two nodes of 8-byte vectors, and codes of this length.
fn block(code_bytes: usize) -> Vec<u8> {
    let (coding, others) = if code_bytes > 0 { (RANKS, 2u16) } else { (NEIGHBOURS, 0) };
    let mut lists = Vec::new();
    coding.encode(&[0, 3], &mut lists);
    let first = lists.len() as u16;
    coding.encode(&[1], &mut lists);
    let table = [0, first, lists.len() as u16].map(u16::to_le_bytes).concat();
    let mut out = 100u32.to_le_bytes().to_vec();
    out.extend([2u16.to_le_bytes(), others.to_le_bytes()].concat());
    out.extend([0; 4]);
    out.extend([5; 2 * 8 + 2 * 4]);
    out.extend(vec![9; (2 + usize::from(others)) * code_bytes]);
    out.extend(table);
    out.extend(lists);
    if code_bytes > 0 {
        IDS.encode(&[7, 200], &mut out);
    }
    out
}

fn link() {
    let claim = [&b"STRATANN\x02\0\0\0\x05\0\x05\0\x09\0\x0a\0\x02\0"[..], &77u64.to_le_bytes()].concat();
    write("link", "claim", &[&[1], &claim]);
    let status = [&[3, 5][..], &7u64.to_le_bytes(), &[1]].concat();
    write("link", "frames", &[&[3], &(status.len() as u16).to_le_bytes(), &status, &[0, 0]]);
}

fn http() {
    let vector = "[1,2,3,4,5,6,7,8]";
    let json = format!("{{\"queries\":[{vector},{vector}],\"k\":3,\"search_list\":20,\"width\":\"auto\"}}");
    write("http_request", "json", &[&[1], json.as_bytes()]);
    let all = "{\"queries\":[[0,0,0,0,0,0,0,1e3]],\"recall\":0.9,\"mode\":\"eager\",\"timeout_ms\":50,\"partial\":true}";
    write("http_request", "json-recall", &[&[1], all.as_bytes()]);
    let parameters = b"k=3&search_list=20&width=2";
    write("http_request", "octets", &[&[2, parameters.len() as u8], parameters, &rows(2, 2)]);
    write("http_request", "raw", &[&[0], b"GET /v1/status HTTP/1.1\r\nHost: here\r\n\r\n"]);
    let reply = "{\"answers\":[{\"ids\":[\"7\"],\"distances\":[0.5],\"partial\":false,\"latency_us\":9,\
                 \"per_query\":{\"reads\":3}},{\"error\":\"gone\",\"kind\":\"unreachable\"}],\"server\":0,\
                 \"params\":{\"k\":1,\"search_list\":20,\"stop_slack\":null,\"patience\":0}}";
    write("http_reply", "reply", &[reply.as_bytes()]);
    write("http_reply", "refusal", &[b"{\"error\":\"no such path\"}"]);
}
