//! Stores whose replies do not end, or steer a terminal.

use stratann_testing::hostile::{Hostile, Reply};

use super::*;

/// More than any of these replies may take, with what the kernel holds.
const FAR_TOO_MUCH: u64 = 200 << 20;

fn store(answer: impl Fn(&str) -> Reply + Send + Sync + 'static) -> (Hostile, Store) {
    let hostile = Hostile::start(answer).unwrap();
    let variables = [
        ("AWS_ACCESS_KEY_ID", "tester".to_string()),
        ("AWS_SECRET_ACCESS_KEY", "not a secret".to_string()),
        ("AWS_REGION", "us-east-1".to_string()),
        ("AWS_ALLOW_HTTP", "true".to_string()),
        ("AWS_ENDPOINT", format!("http://{}", hostile.address())),
    ];
    let variables = variables.map(|(name, value)| (name.to_string(), value));
    let store = Store::open_with("s3://bucket/indexes", variables).unwrap();
    (hostile, store)
}

fn is_list(line: &str) -> bool {
    line.contains("list-type=2")
}

/// The list of a store with one version.
fn list() -> Reply {
    let object = "<Contents><Key>indexes/manifest-1.json</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                  <ETag>\"x\"</ETag><Size>1</Size></Contents>";
    Reply::of("200 OK", &format!("<ListBucketResult>{object}</ListBucketResult>"))
}

/// The head of an object of so many bytes.
fn object(bytes: u64) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nETag: \"x\"\r\n";
    format!("{head}Content-Length: {bytes}\r\n\r\n").into_bytes()
}

#[test]
fn endless_replies_end() {
    let spaces = vec![b' '; 1 << 20];
    let endless = |status: &'static str| {
        let (head, chunk) = Reply::chunks(status, 1 << 20);
        move |_: &str| Reply::Endless(head.clone(), chunk.clone())
    };
    for status in ["200 OK", "403 Forbidden", "404 Not Found"] {
        let (hostile, store) = store(endless(status));
        let error = store.newest().unwrap_err();
        assert!(error.message.contains("length limit") || error.kind == ErrorKind::Io, "{error}");
        assert!(hostile.sent() < FAR_TOO_MUCH, "{status}: {} bytes", hostile.sent());
    }
    // A manifest of a terabyte.
    let (hostile, store) = store(move |line| match is_list(line) {
        true => list(),
        false => Reply::Endless(object(1 << 40), spaces.clone()),
    });
    let error = store.newest().unwrap_err();
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains("a manifest at most"), "{error}");
    assert!(hostile.sent() < FAR_TOO_MUCH, "{} bytes", hostile.sent());
}

#[test]
fn slow_replies_end() {
    let (head, chunk) = Reply::chunks("200 OK", 1);
    let (_hostile, slow) = store(move |_| Reply::Dribble(head.clone(), chunk.clone()));
    let error = slow.newest().unwrap_err();
    assert!(error.message.contains("has no end after 3 s"), "{error}");
    let (_hostile, slow) = store(move |line| match is_list(line) {
        true => list(),
        false => Reply::Dribble(object(10_000), vec![b' ']),
    });
    let error = slow.newest().unwrap_err();
    assert!(error.message.contains("manifest-1.json has no end after 3 s"), "{error}");
}

/// A data file is read no further than its manifest says.
#[test]
fn a_longer_file_than_the_manifest_says_is_not_read() {
    let (hostile, store) = store(move |_| Reply::Endless(object(1 << 40), vec![b' '; 1 << 20]));
    let folder = tempfile::tempdir().unwrap();
    let entry = stratann_storage::data_file::FileEntry { bytes: 1000, xxh3: "0".repeat(16) };
    let fetched =
        store.download(BuildId::default(), "v1-blocks.bin", &entry, folder.path(), &stratann_storage::Quiet);
    let error = fetched.unwrap_err();
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains("arrived damaged"), "{error}");
    assert!(hostile.sent() < FAR_TOO_MUCH, "{} bytes", hostile.sent());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn replies_do_not_steer_a_terminal() {
    let text = "<Error><Code>\u{1b}]0;title\u{7}</Code><Message>\u{9b}31m\r\nsecond</Message></Error>";
    let (_hostile, store) = store(move |_| Reply::of("403 Forbidden", text));
    let error = store.newest().unwrap_err();
    assert!(!error.message.chars().any(char::is_control) && error.message.contains("second"), "{error}");
}
