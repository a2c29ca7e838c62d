//! Rules of this repository that no compiler knows: who may depend on whom, where `unsafe` may stand, how long a file
//! may grow, and that links lead somewhere. Each rule collects all of its violations before it fails.

use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a source file, its tests not counted.
const FILE_LINES_MAX: usize = 600;
/// Lines of a function, its signature included.
const FUNCTION_LINES_MAX: usize = 70;
/// Lines above an unsafe block within which its reason may begin.
const SAFETY_REACH: usize = 8;

/// Folders that hold nothing written by hand.
const SKIPPED: [&str; 5] = ["target", "demo-out", "out", "node_modules", "__pycache__"];

/// Endings of what is.
const WRITTEN: [&str; 8] = [".rs", ".py", ".pyi", ".sh", ".md", ".toml", "Makefile", ".ci/run"];

/// Places where `unsafe` may stand: arithmetic, code that talks to the kernel of the machine or to a C library, and
/// arrays that Python owns.
const UNSAFE_ALLOWED: [&str; 10] = [
    "crates/kernel/",
    "crates/gpu/src/",
    "crates/storage/src/tier/",
    "crates/storage/src/link/sockets.rs",
    "crates/storage/src/remote_memory/region/",
    "crates/storage/src/remote_memory/ucx/",
    "crates/storage/src/budget.rs",
    "crates/storage/src/process.rs",
    "crates/storage/src/threads.rs",
    "python/src/vectors.rs",
];

/// Words that say nothing about a file.
const EMPTY_NAMES: [&str; 5] = ["manager", "provider", "factory", "helper", "utils"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

struct Source {
    /// Relative to the repository, with `/`.
    name: String,
    text: String,
}

impl Source {
    fn has_suffix(&self, suffix: &str) -> bool {
        self.name.ends_with(suffix)
    }

    fn is_test(&self) -> bool {
        self.name.contains("/tests/") || self.has_suffix("/tests.rs")
    }

    /// The lines that are no tests: tests stand last in a file.
    fn body(&self) -> Vec<&str> {
        let lines: Vec<&str> = self.text.lines().collect();
        let tests = lines.windows(2).position(|w| w[0] == "#[cfg(test)]" && w[1].starts_with("mod "));
        lines[..tests.unwrap_or(lines.len())].to_vec()
    }
}

/// Every text file written by hand.
fn sources() -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder that can be read").flatten() {
            let path = entry.path();
            let name = entry.file_name().into_string().expect("names are UTF-8");
            if path.is_dir() {
                let is_hidden = name.starts_with('.') && name != ".ci";
                if !is_hidden && !SKIPPED.contains(&name.as_str()) && !name.ends_with(".egg-info") {
                    folders.push(path);
                }
                continue;
            }
            let relative = path.strip_prefix(&root).expect("below the root").to_str().expect("UTF-8");
            if WRITTEN.iter().any(|s| relative.ends_with(s)) {
                let text = fs::read_to_string(&path).expect("UTF-8 text");
                found.push(Source { name: relative.to_string(), text });
            }
        }
    }
    assert!(found.len() > 50, "only {} sources below {}", found.len(), root.display());
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

fn rust_sources() -> Vec<Source> {
    sources().into_iter().filter(|s| s.has_suffix(".rs")).collect()
}

#[track_caller]
fn demand_none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}:\n  {}", violations.join("\n  "));
}

/// A line without its comment. Strings that hold `//` are cut too, which loses nothing here.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or("")
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

/// Names in the `[dependencies]` table of a crate, those for one platform included.
fn dependencies(name: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).expect("a manifest");
    let mut inside = false;
    let mut names = Vec::new();
    for line in text.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]"
                || (line.starts_with("[target.") && line.ends_with(".dependencies]"));
        } else if inside
            && !line.starts_with('#')
            && let Some(end) = line.find(['.', ' ', '='])
        {
            names.push(line[..end].to_string());
        }
    }
    assert!(!names.is_empty(), "{name} has no dependencies");
    names
}

#[test]
fn dependencies_point_downwards() {
    let allowed: [(&str, &[&str]); 3] = [
        ("kernel", &["bytemuck", "half"]),
        ("core", &["stratann-kernel", "bytemuck", "xxhash-rust"]),
        ("sim", &["stratann-core"]),
    ];
    let mut violations = Vec::new();
    for (name, allowed) in allowed {
        let strangers = dependencies(name).into_iter().filter(|d| !allowed.contains(&d.as_str()));
        violations.extend(strangers.map(|d| format!("{name} depends on {d}")));
    }
    let engine = dependencies("engine").into_iter().filter(|d| {
        [
            "stratann",
            "stratann-server",
            "stratann-sim",
            "stratann-capacity",
            "clap",
            "indicatif",
            "tokio",
            "axum",
        ]
        .contains(&d.as_str())
    });
    violations.extend(engine.map(|d| format!("engine depends on {d}")));
    let storage = dependencies("storage").into_iter().filter(|d| {
        d.starts_with("stratann")
            && !["stratann-kernel", "stratann-params", "stratann-core"].contains(&d.as_str())
    });
    violations.extend(storage.map(|d| format!("storage depends on {d}")));
    let node = dependencies("node").into_iter().filter(|d| {
        d.starts_with("stratann")
            && ![
                "stratann-core",
                "stratann-engine",
                "stratann-kernel",
                "stratann-params",
                "stratann-payload",
                "stratann-storage",
            ]
            .contains(&d.as_str())
    });
    violations.extend(node.map(|d| format!("node depends on {d}")));
    let import = dependencies("import").into_iter().filter(|d| {
        d.starts_with("stratann")
            && ![
                "stratann-engine",
                "stratann-kernel",
                "stratann-node",
                "stratann-payload",
                "stratann-storage",
            ]
            .contains(&d.as_str())
    });
    violations.extend(import.map(|d| format!("import depends on {d}")));
    let server = dependencies("server").into_iter().filter(|d| {
        ["stratann", "stratann-kernel", "stratann-sim", "stratann-capacity", "clap", "indicatif"]
            .contains(&d.as_str())
    });
    violations.extend(server.map(|d| format!("server depends on {d}")));
    demand_none(
        "kernel, core and sim stand alone, the engine knows no command line and no async runtime, the server no command line",
        &violations,
    );
}

#[test]
fn no_product_depends_on_the_laboratory() {
    let crates = fs::read_dir(root().join("crates")).expect("crates").flatten().map(|entry| entry.path());
    let products: Vec<_> = crates
        .filter(|path| !path.ends_with("lab"))
        .chain(["python", "fuzz"].map(|name| root().join(name)))
        .map(|path| path.join("Cargo.toml"))
        .filter(|path| path.exists())
        .collect();
    assert!(products.len() > 8, "{products:?}");
    let names = |path: &Path, name: &str| fs::read_to_string(path).expect("UTF-8").contains(name);
    let dependents = products.iter().filter(|path| names(path, "stratann-lab"));
    let mut violations: Vec<String> = dependents.map(|path| path.display().to_string()).collect();
    if names(&root().join("Cargo.toml"), "\"crates/lab\"") {
        violations.push("the default members of the workspace".to_string());
    }
    demand_none("these know the laboratory, and would compile it", &violations);
}

#[test]
fn core_has_no_std_and_no_unsafe() {
    let lib = fs::read_to_string(root().join("crates/core/src/lib.rs")).expect("core's lib.rs");
    for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
        assert!(lib.lines().any(|l| l == attribute), "crates/core/src/lib.rs lacks {attribute}");
    }
    let mut violations = Vec::new();
    for source in rust_sources().iter().filter(|s| s.name.starts_with("crates/core/src/") && !s.is_test()) {
        for (i, line) in source.body().iter().enumerate() {
            if code(line).contains("std::") || code(line).contains("extern crate std") {
                violations.push(format!("{}:{}: {}", source.name, i + 1, line.trim()));
            }
        }
    }
    demand_none("core does no I/O and has no clock", &violations);
}

#[test]
fn unsafe_stands_where_it_may_and_says_why() {
    let mut violations = Vec::new();
    for source in rust_sources() {
        let lines: Vec<&str> = source.text.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            if source.has_suffix("tidy.rs") || !has_word(code(line), "unsafe") {
                continue;
            }
            let place = format!("{}:{}", source.name, i + 1);
            if !UNSAFE_ALLOWED.iter().any(|p| source.name.starts_with(p)) && !source.is_test() {
                violations.push(format!("{place}: unsafe outside of {}", UNSAFE_ALLOWED.join(", ")));
            }
            let needs_reason = code(line).contains("unsafe {") || code(line).contains("unsafe impl");
            let near = &lines[i.saturating_sub(SAFETY_REACH)..=i];
            if needs_reason && !near.iter().any(|l| l.contains("SAFETY:")) {
                violations.push(format!("{place}: no `// SAFETY:` above it"));
            }
        }
    }
    demand_none("unsafe", &violations);
}

#[test]
fn files_are_opened_in_one_way() {
    const ALLOWED: [&str; 9] = [
        "storage/src/input.rs",
        // They sync what they have written, a folder among it.
        "storage/src/durable.rs",
        "storage/src/output/atomic.rs",
        "engine/src/spread/parts.rs",
        "cluster/src/store/fetch/before.rs",
        // They read what the system says of itself.
        "storage/src/budget.rs",
        "engine/src/doctor.rs",
        "storage/src/profile/origin.rs",
        "cli/src/commands/cluster/up.rs",
    ];
    let mut found = Vec::new();
    let is_program = |s: &&Source| s.name.contains("/src/") && !s.name.starts_with("fuzz/") && !s.is_test();
    for source in rust_sources().iter().filter(is_program) {
        let is_allowed =
            ALLOWED.iter().any(|name| source.has_suffix(name)) || source.name.contains("testing");
        for line in source.body().into_iter().filter(|_| !is_allowed) {
            let opens = ["File::open", "fs::read", "fs::read_to_string"];
            if opens.iter().any(|call| has_word(code(line), call)) {
                found.push(format!("{}: {}", source.name, line.trim()));
            }
        }
    }
    demand_none("`stratann_storage::input` opens files, which refuses what is no regular file", &found);
}

#[test]
fn files_fit_in_the_head() {
    let mut violations = Vec::new();
    for source in sources().iter().filter(|s| s.has_suffix(".rs") || s.has_suffix(".py")) {
        let lines = source.body().len();
        if lines > FILE_LINES_MAX && !source.is_test() {
            violations.push(format!("{}: {lines} lines, up to {FILE_LINES_MAX} are allowed", source.name));
        }
    }
    demand_none("long files", &violations);
}

#[test]
fn functions_fit_on_a_screen() {
    let mut violations = Vec::new();
    for source in rust_sources().iter().filter(|s| !s.is_test()) {
        let body = source.body();
        for (i, line) in body.iter().enumerate() {
            let trimmed = line.trim_start();
            let indent = &line[..line.len() - trimmed.len()];
            if trimmed.starts_with("//")
                || !has_word(trimmed, "fn")
                || !trimmed.contains('(')
                || trimmed.ends_with(';')
            {
                continue;
            }
            // A declaration without a body.
            let ends = body[i..].iter().find(|l| l.ends_with('{') || l.ends_with(';'));
            if ends.is_some_and(|l| l.ends_with(';')) {
                continue;
            }
            // rustfmt puts the closing brace under the first letter of the function.
            let end = body[i..].iter().position(|l| *l == format!("{indent}}}"));
            if let Some(length) = end.filter(|&length| length + 1 > FUNCTION_LINES_MAX) {
                violations.push(format!("{}:{}: {} lines", source.name, i + 1, length + 1));
            }
        }
    }
    demand_none(&format!("functions of more than {FUNCTION_LINES_MAX} lines"), &violations);
}

#[test]
fn names_say_something() {
    let is_empty = |source: &&Source| {
        let file = source.name.rsplit('/').next().unwrap_or("").to_ascii_lowercase();
        EMPTY_NAMES.iter().any(|n| file.contains(n))
    };
    let violations: Vec<String> = sources().iter().filter(is_empty).map(|s| s.name.clone()).collect();
    demand_none("file names that say nothing", &violations);
}

#[test]
fn nothing_is_left_for_later() {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
    let mut violations = Vec::new();
    for source in sources() {
        for (i, line) in source.text.lines().enumerate() {
            if marks.iter().any(|m| has_word(line, m)) {
                violations.push(format!("{}:{}: {}", source.name, i + 1, line.trim()));
            }
        }
    }
    demand_none("unfinished work", &violations);
}

/// Targets of `[text](target)` that lie in the repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
    targets.filter(|t| !t.is_empty() && !t.contains("://") && !t.starts_with("mailto:"))
}

#[test]
fn links_lead_somewhere() {
    let root = root();
    let mut violations = Vec::new();
    for source in sources() {
        if source.has_suffix(".md") {
            let folder = root.join(&source.name).parent().expect("a folder").to_path_buf();
            let dead = links(&source.text).filter(|t| !folder.join(t).exists());
            violations.extend(dead.map(|t| format!("{}: {t}", source.name)));
        }
        // Mentions of a decision in comments and text.
        for mention in source.text.split("decisions/").skip(1) {
            let number: String = mention.chars().take_while(char::is_ascii_digit).collect();
            if number.len() == 4 && !decisions().iter().any(|d| d.starts_with(&number)) {
                violations.push(format!("{}: decision {number}", source.name));
            }
        }
    }
    demand_none("dead links", &violations);
}

fn decisions() -> Vec<String> {
    let entries = fs::read_dir(root().join("decisions")).expect("decisions/").flatten();
    let names = entries.map(|e| e.file_name().into_string().expect("UTF-8"));
    let mut numbered: Vec<String> = names.filter(|n| n.starts_with(|c: char| c.is_ascii_digit())).collect();
    numbered.sort();
    numbered
}

#[test]
fn decisions_are_numbered_listed_and_whole() {
    let index = fs::read_to_string(root().join("decisions/README.md")).expect("decisions/README.md");
    let mut violations = Vec::new();
    for (i, name) in decisions().iter().enumerate() {
        if !name.starts_with(&format!("{:04}-", i + 1)) {
            violations.push(format!("{name}: number {:04} comes next", i + 1));
        }
        if !index.contains(name.as_str()) {
            violations.push(format!("{name}: not in decisions/README.md"));
        }
        let text = fs::read_to_string(root().join("decisions").join(name)).expect("a decision");
        for part in ["## Context", "## Decision", "## Consequences"] {
            if !text.contains(part) {
                violations.push(format!("{name}: no {part:?}"));
            }
        }
    }
    demand_none("decisions", &violations);
}

#[test]
fn make_knows_every_script_it_calls() {
    let text = fs::read_to_string(root().join("Makefile")).expect("Makefile");
    let scripts =
        text.split_whitespace().filter(|w| w.ends_with(".py") && w.contains('/') && !w.contains('*'));
    let missing: Vec<String> = scripts.filter(|s| !root().join(s).exists()).map(String::from).collect();
    demand_none("scripts named in the Makefile", &missing);
}
