//! The structure of core, storage, engine and node: no circle of modules across rooms, no kind outside its room, lines
//! that fit.
//!
//! A room is a module directly below a crate's root.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Columns of a line of code. Rows of tables in comments may be longer.
const COLUMNS_MAX: usize = 120;

/// The kinds of index.
const KINDS: [&str; 7] = ["flat", "disk_graph", "hybrid_ivf", "grid_ivf", "gpu_ivf", "remote_hnsw", "sorted"];

/// The rooms of core from the lowest up: a room uses only those before it. A `*` is each of the kinds: their rooms
/// never use each other.
const CORE_ROOMS: [&str; 22] = [
    "hash",
    "order",
    "codec",
    "place",
    "format",
    "remote_protocol",
    "sieve",
    "delta",
    "view",
    "score",
    "search",
    "route",
    "access",
    "exact",
    "check",
    "build",
    "kinds::kind",
    "kinds::*",
    "kinds",
    "query",
    "peer",
    "lib",
];

/// The rooms of storage.
const STORAGE_ROOMS: [&str; 17] = [
    "error",
    "progress",
    "names",
    "input",
    "durable",
    "budget",
    "ledger",
    "output",
    "process",
    "cache",
    "threads",
    "tier",
    "digest",
    "data_file",
    "profile",
    "link",
    "remote_memory",
];

/// The rooms of engine. Below the manifest is what it records of a kind. A `=` stands for a module without those in it.
const ENGINE_ROOMS: [&str; 48] = [
    "record",
    "sieve_ways",
    "parallel",
    "tiles",
    "clusterings",
    "dataset",
    "codebook",
    "files",
    "units",
    "groundtruth",
    "kinds::facts",
    "kinds::*::limits",
    "kinds::gpu_ivf::rule",
    "kinds::gpu_ivf::baseline =",
    "kinds::*::learning::options",
    "kinds::*::facts",
    "kinds::known",
    "curve",
    "kinds::*::options",
    "kinds::options",
    "kinds::section",
    "manifest",
    "exec",
    "trace",
    "base",
    "findings",
    "stages",
    "kinds::answers",
    "kinds::sieved_lists",
    "kinds::live_plans",
    "kinds::cluster_set",
    "kinds::shares_loads",
    "kinds::blocks",
    "kinds::questions",
    "kinds::*",
    "kinds",
    "doctor",
    "index",
    "search",
    "recall",
    "build",
    "spread",
    "verify",
    "explain",
    "memory_nodes",
    "deletes",
    "serve",
    "lib",
];

/// The rooms of node.
const NODE_ROOMS: [&str; 48] = [
    "rows::key",
    "rows::id_text",
    "rows::batch",
    "rows::memory",
    "rows::options",
    "rows::counters",
    "rows::tip",
    "rows::folder",
    "rows::log",
    "rows::engine",
    "rows::read_only",
    "rows::fjall",
    "rows::open",
    "rows",
    "segments::content",
    "segments::ids",
    "segments::layout",
    "segments::unfinished",
    "segments::nearest",
    "segments::overlay",
    "segments::payloads",
    "segments::scanned",
    "segments::named",
    "segments::segment",
    "segments::made",
    "segments::merge",
    "segments::policy",
    "segments",
    "collections::error",
    "collections::spec",
    "collections::point",
    "collections::limits",
    "collections::budget",
    "collections::delta",
    "collections::sieves",
    "collections::options",
    "collections::parts",
    "collections::work",
    "collections::live",
    "collections::verify",
    "collections::catalogue",
    "collections::salvage",
    "collections::collection",
    "collections::by_filter",
    "collections::node",
    "collections",
    "points",
    "lib",
];

/// The rooms of the command line: what commands share, then one room for each command.
const CLI_ROOMS: [&str; 38] = [
    "output",
    "parameters",
    "plans",
    "progress",
    "queries",
    "filter",
    "points",
    "truth",
    "help",
    "unknown",
    "program",
    "memory_nodes",
    "http_client",
    "memory",
    "options",
    "data_folder",
    "point_columns",
    "point_filter",
    "commands::serve",
    "commands::profile",
    "commands::search",
    "commands::build",
    "commands::groundtruth",
    "commands::replan",
    "commands::tune",
    "commands::update",
    "commands::verify",
    "commands::completions",
    "commands::explain",
    "commands::cluster",
    "commands::collection",
    "commands::memory_node",
    "commands::bench",
    "commands::doctor",
    "commands::info",
    "commands::simulate",
    "commands",
    "main",
];

/// The orders of rooms.
const ORDERS: [(&str, &[&str]); 5] = [
    ("core", &CORE_ROOMS),
    ("storage", &STORAGE_ROOMS),
    ("engine", &ENGINE_ROOMS),
    ("node", &NODE_ROOMS),
    ("cli", &CLI_ROOMS),
];

/// Lines of the largest layer of rooms that know each other, tests not counted.
const LAYER_LINES_MAX: usize = 6_000;

/// The sums over all kinds.
const SUMS: [&str; 5] = ["Kind", "KindView", "KindIndex", "KindParams", "KindOptions"];

/// Files that name a kind outside of the sums, and why.
const NAMES_A_KIND: [(&str, &str); 5] = [
    ("core/src/query/mod.rs", "re-exports a limit of the search list"),
    ("core/src/query/params.rs", "one constructor for each kind"),
    ("core/src/query/state.rs", "one view of the own state for each kind, for traces"),
    ("engine/src/files.rs", "encodes the data files of all kinds"),
    ("engine/src/spread/scatter.rs", "separate indexes are graphs"),
];

/// Searches of other systems, and of a kind without a technique: rooms behind the feature `lab` alone know them.
const BASELINES: [&str; 15] = [
    "Source::Lists",
    "Source::CodeLists",
    "Source::ResidentLists",
    "::Spann",
    "::ListsOfCodes",
    "::SpannOnGpu",
    "::Rummy",
    "::MultiTierOnCpu",
    "::MultiTierOnGpu",
    "::StaticCandidates",
    "::NoDeduplication",
    "::NoLayout",
    "::Naive",
    "::NoDoorbell",
    "::NoOverlap",
];

type Module = Vec<String>;

/// A room: its place in the order, and the part of a module's path that names it.
type Room = (usize, Module);

/// The room of a module: that of the pattern which says most of its path.
fn room_of(rooms: &[&str], module: &Module) -> Option<Room> {
    let mut best: Option<(usize, Room)> = None;
    for (rank, pattern) in rooms.iter().enumerate() {
        let alone = pattern.strip_suffix(" =");
        let parts: Vec<&str> = alone.unwrap_or(pattern).split("::").collect();
        let fits =
            |(part, name): (&&str, &String)| *part == name || *part == "*" && KINDS.contains(&name.as_str());
        let says = 2 * parts.len() - parts.iter().filter(|part| **part == "*").count();
        if parts.len() <= module.len()
            && (alone.is_none() || parts.len() == module.len())
            && parts.iter().zip(module).all(fits)
            && best.as_ref().is_none_or(|(most, _)| says > *most)
        {
            best = Some((says, (rank, module[..parts.len()].to_vec())));
        }
    }
    best.map(|(_, room)| room)
}

struct Crate {
    /// The code of each module, without comments, strings and tests.
    modules: BTreeMap<Module, String>,
    /// Lines of each module, tests not counted.
    lines: BTreeMap<Module, usize>,
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the crates")
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

impl Crate {
    fn read(name: &str) -> Crate {
        let root = crates().join(name).join("src");
        let (mut modules, mut lines) = (BTreeMap::new(), BTreeMap::new());
        for path in rust_files(&root) {
            let relative = path.strip_prefix(&root).expect("below the root").with_extension("");
            let mut module: Module =
                relative.iter().map(|part| part.to_str().expect("UTF-8").to_string()).collect();
            if module.last().is_some_and(|last| last == "mod") {
                module.pop();
            }
            if module.iter().any(|part| part == "tests") || module == ["lib"] {
                continue;
            }
            let text = fs::read_to_string(&path).expect("UTF-8");
            lines.insert(module.clone(), text.split(TESTS).next().unwrap_or("").lines().count());
            modules.insert(module, code_of(&text));
        }
        let least = if name == "node" { NODE_ROOMS.len() - 1 } else { 30 };
        assert!(modules.len() >= least, "only {} modules in {name}", modules.len());
        Crate { modules, lines }
    }

    /// The module that a path leads to, as seen from a module; `None` for one outside of the crate.
    fn resolve(&self, from: &Module, path: &[String]) -> Option<Module> {
        let mut target = match path.first()?.as_str() {
            "crate" => path[1..].to_vec(),
            "self" => [from, &path[1..]].concat(),
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                [&from[..from.len().checked_sub(ups)?], &path[ups..]].concat()
            }
            child => {
                let own = [&from[..], &[child.to_string()]].concat();
                self.modules.contains_key(&own).then(|| [from, path].concat())?
            }
        };
        while !target.is_empty() && !self.modules.contains_key(&target) {
            target.pop();
        }
        (!target.is_empty() && target != *from).then_some(target)
    }

    /// The paths that a macro makes of one: `$room` is each of the kinds.
    fn of_kinds(&self, path: Vec<String>) -> Vec<Vec<String>> {
        if path.iter().all(|part| part != "$room") {
            return vec![path];
        }
        let has_room = |kind: &&&str| self.modules.contains_key(&vec!["kinds".to_string(), kind.to_string()]);
        let of = |kind: &&str| path.iter().map(|part| part.replace("$room", kind)).collect();
        KINDS.iter().filter(has_room).map(of).collect()
    }

    fn edges(&self) -> BTreeMap<&Module, BTreeSet<Module>> {
        let edges = |(from, code): (&Module, &String)| {
            let all = paths(code).into_iter().flat_map(|path| self.of_kinds(path));
            all.filter_map(|path| self.resolve(from, &path)).collect()
        };
        self.modules.iter().map(|entry| (entry.0, edges(entry))).collect()
    }
}

/// The beginning of the tests of a file, which stand last.
const TESTS: &str = "#[cfg(test)]\nmod ";

/// Code without comments, the content of strings, and the tests, which stand last.
fn code_of(text: &str) -> String {
    let text = text.split(TESTS).next().unwrap_or("");
    let mut code = String::new();
    for line in text.lines() {
        let mut is_string = false;
        let mut last = ' ';
        for c in line.split("//").next().unwrap_or("").chars() {
            if c == '"' && last != '\\' && last != '\'' {
                is_string = !is_string;
            } else if !is_string {
                code.push(c);
            }
            last = c;
        }
        code.push('\n');
    }
    code
}

/// Every path of the code: those of `use` with their braces resolved, and those in the code.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (i, piece) in code.split("use ").enumerate() {
        let (tree, rest) = if i == 0 { ("", piece) } else { piece.split_once(';').unwrap_or((piece, "")) };
        add_tree(&[], tree, &mut found);
        for word in rest.split(|c: char| !(c.is_alphanumeric() || "_:$".contains(c))) {
            if word.contains("::") {
                found.push(word.split("::").filter(|part| !part.is_empty()).map(String::from).collect());
            }
        }
    }
    found.retain(|path| !path.is_empty());
    found
}

fn add_tree(prefix: &[String], tree: &str, found: &mut Vec<Vec<String>>) {
    let names = |text: &str| -> Vec<String> {
        let text = text.split(" as ").next().unwrap_or("");
        text.split("::").map(|part| part.trim().to_string()).filter(|part| !part.is_empty()).collect()
    };
    let Some((head, body)) = tree.split_once('{') else {
        found.push([prefix, &names(tree)].concat());
        return;
    };
    let prefix = [prefix, &names(head)].concat();
    let body = body.rsplit_once('}').map_or(body, |(body, _)| body);
    let (mut depth, mut start) = (0, 0);
    for (at, c) in body.char_indices().chain([(body.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                add_tree(&prefix, &body[start..at], found);
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// Everything that a module leads to.
fn reach<'a>(from: &'a Module, edges: &'a BTreeMap<&Module, BTreeSet<Module>>) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for next in edges.get(module).into_iter().flatten() {
            if found.insert(next) {
                open.push(next);
            }
        }
    }
    found
}

#[track_caller]
fn demand_none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}:\n  {}", violations.join("\n  "));
}

#[test]
fn paths_of_code_are_found() {
    let code =
        code_of("use crate::{a::{B, c::D as E}, f};\nlet x = super::g::h(\"crate::no\"); // crate::none\n");
    let found: Vec<String> = paths(&code).iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["crate::a::B", "crate::a::c::D", "crate::f", "super::g::h"]);
}

#[test]
fn modules_of_different_rooms_form_no_circle() {
    let mut violations = Vec::new();
    for name in ["core", "storage", "engine"] {
        let of = Crate::read(name);
        let edges = of.edges();
        assert!(
            edges.values().map(BTreeSet::len).sum::<usize>() > of.modules.len(),
            "{name} has too few edges"
        );
        for (from, direct) in &edges {
            for to in direct.iter().filter(|to| to[0] != from[0]) {
                if reach(to, &edges).contains(*from) {
                    violations.push(format!("{name}: {} and {}", from.join("::"), to.join("::")));
                }
            }
        }
    }
    demand_none("modules that lead to each other", &violations);
}

#[test]
fn rooms_use_those_below() {
    let mut violations = Vec::new();
    for (name, rooms) in ORDERS {
        let of = Crate::read(name);
        for (from, direct) in of.edges() {
            let place = |module: &Module| {
                let room = room_of(rooms, module);
                room.unwrap_or_else(|| panic!("{} of {name} is in no room", module.join("::")))
            };
            let (rank, room) = place(from);
            for to in direct {
                let (below, other) = place(&to);
                if below > rank || below == rank && other != room {
                    violations.push(format!("{name}: {} uses {}", from.join("::"), to.join("::")));
                }
            }
        }
    }
    demand_none("a lower room uses a higher one, or a kind another", &violations);
}

#[test]
fn no_layer_is_large() {
    let mut violations = Vec::new();
    for (name, rooms) in ORDERS {
        let of = Crate::read(name);
        let room = |module: &Module| room_of(rooms, module).map_or_else(Vec::new, |(_, room)| room);
        let mut edges: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        let mut lines: BTreeMap<Module, usize> = BTreeMap::new();
        for (from, direct) in of.edges() {
            edges.entry(room(from)).or_default().extend(direct.iter().map(room));
            *lines.entry(room(from)).or_default() += of.lines[from];
        }
        let edges: BTreeMap<&Module, BTreeSet<Module>> =
            edges.iter().map(|(from, to)| (from, to.clone())).collect();
        for own in lines.keys() {
            let is_near = |other: &&Module| {
                *other == own || reach(own, &edges).contains(other) && reach(other, &edges).contains(own)
            };
            let layer: Vec<&Module> = lines.keys().filter(is_near).collect();
            let sum: usize = layer.iter().map(|room| lines[*room]).sum();
            if sum > LAYER_LINES_MAX {
                let names: Vec<String> = layer.iter().map(|room| room.join("::")).collect();
                violations.push(format!("{name}: {sum} lines in {}", names.join(", ")));
            }
        }
    }
    demand_none(&format!("more than {LAYER_LINES_MAX} lines that know each other"), &violations);
}

#[test]
fn kinds_stay_in_their_rooms() {
    let variants = ["Flat", "DiskGraph", "HybridIvf", "GridIvf", "GpuIvf", "RemoteHnsw", "Sorted"];
    let mut violations = Vec::new();
    let mut excused = BTreeSet::new();
    for name in ["core", "storage", "engine"] {
        let of = Crate::read(name);
        for (module, code) in of.modules.iter().filter(|(module, _)| module[0] != "kinds") {
            let leads = paths(code).into_iter().any(|path| {
                path.windows(2).any(|pair| {
                    pair[0] == "kinds" && KINDS.contains(&pair[1].as_str())
                        || SUMS.contains(&pair[0].as_str()) && variants.contains(&pair[1].as_str())
                })
            });
            if leads {
                let plain = format!("{name}/src/{}.rs", module.join("/"));
                let folder = format!("{name}/src/{}/mod.rs", module.join("/"));
                match NAMES_A_KIND.iter().find(|(file, _)| *file == plain || *file == folder) {
                    Some((file, _)) => _ = excused.insert(*file),
                    None => violations.push(plain),
                }
            }
        }
    }
    demand_none("a kind is named outside of the sums", &violations);
    let stale = NAMES_A_KIND.iter().filter(|(file, _)| !excused.contains(file));
    let stale: Vec<String> = stale.map(|(file, _)| (*file).to_string()).collect();
    demand_none("files that no longer name a kind", &stale);
}

#[test]
fn baselines_stay_behind_the_feature_of_the_laboratory() {
    let mut violations = Vec::new();
    let mut rooms = 0;
    let lab = crates().join("lab");
    for path in rust_files(&crates()).iter().filter(|path| !path.starts_with(&lab)) {
        let (name, text) = (path.display().to_string(), fs::read_to_string(path).expect("UTF-8"));
        if !name.contains("/src/") || name.contains("/baseline") {
            continue;
        }
        let code = code_of(&text);
        let known = BASELINES.iter().filter(|variant| code.contains(*variant));
        violations.extend(known.map(|variant| format!("{name} knows {variant}")));
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.ends_with("mod baseline;")) {
            rooms += 1;
            if at == 0 || lines[at - 1] != "#[cfg(feature = \"lab\")]" {
                violations.push(format!("{name}:{}: {line} without the feature", at + 1));
            }
        }
    }
    assert!(rooms >= 4, "only {rooms} rooms of baselines");
    demand_none("baselines outside of rooms behind the feature `lab`", &violations);
}

/// The heading of the map that has the rooms of a crate.
const MAPS: [(&str, &str); 12] = [
    ("kernel", "kernel"),
    ("params", "params"),
    ("core", "core"),
    ("storage", "storage"),
    ("engine", "engine"),
    ("cli", "cli"),
    ("import", "import"),
    ("gpu", "gpu, sim, capacity, server, cluster"),
    ("sim", "gpu, sim, capacity, server, cluster"),
    ("capacity", "gpu, sim, capacity, server, cluster"),
    ("server", "gpu, sim, capacity, server, cluster"),
    ("cluster", "gpu, sim, capacity, server, cluster"),
];

#[test]
fn every_room_is_on_the_map_and_every_place_on_it_exists() {
    let root = crates().join("..");
    let map = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the map");
    let mut violations = Vec::new();
    for (name, heading) in MAPS {
        let section =
            map.split(&format!("\n## {heading}\n")).nth(1).and_then(|rest| rest.split("\n## ").next());
        let section = section.unwrap_or_else(|| panic!("the map has no section {heading}"));
        for entry in fs::read_dir(crates().join(name).join("src")).expect("a folder").flatten() {
            let file = entry.file_name().into_string().expect("UTF-8");
            let room = file.strip_suffix(".rs").unwrap_or(&file);
            let forms = [format!("{room}/"), format!("{room}.rs")];
            if room != "lib" && !forms.iter().any(|form| section.contains(form)) {
                violations.push(format!("{name}/src/{file} is not in the section {heading}"));
            }
        }
    }
    for place in map.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        if !place.contains("://") && !root.join(place).exists() {
            violations.push(format!("{place} does not exist"));
        }
    }
    for place in map.split('`').filter(|text| text.starts_with("cli/") || text.starts_with("engine/")) {
        let path = place.split_once('/').map(|(name, rest)| format!("{name}/src/{rest}")).unwrap_or_default();
        if !place.contains('<') && !place.contains('*') && !crates().join(path).exists() {
            violations.push(format!("{place} does not exist"));
        }
    }
    demand_none("the map is not true", &violations);
}

#[test]
fn lines_fit() {
    let mut violations = Vec::new();
    for path in
        rust_files(&crates()).iter().filter(|path| !path.components().any(|c| c.as_os_str() == "tests"))
    {
        let text = fs::read_to_string(path).expect("UTF-8");
        let body = text.split(TESTS).next().unwrap_or("");
        for (i, line) in body.lines().enumerate() {
            let is_table = line.trim_start().starts_with("//! |") || line.trim_start().starts_with("/// |");
            if line.chars().count() > COLUMNS_MAX && !is_table {
                violations.push(format!("{}:{}", path.display(), i + 1));
            }
        }
    }
    demand_none(&format!("lines of more than {COLUMNS_MAX} columns"), &violations);
}
