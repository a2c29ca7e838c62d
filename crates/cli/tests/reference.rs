//! Files that follow from the table of parameters: the book's reference, man pages, and arguments in Python. After a
//! change of the table, `STRATANN_BLESS=1 cargo test --workspace --locked --test reference` writes them again.
#![allow(missing_docs)]

mod common;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use common::*;
use stratann_params::{GROUPS, GroupInfo, IndexKind, Level, Param, Place, Stage, Type, Unit, Value};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares a file with its text, or writes it.
fn follow(path: &str, text: &str) {
    let path = project().join(path);
    if std::env::var_os("STRATANN_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = found.lines().zip(text.lines()).position(|(a, b)| a != b);
    assert!(
        found == text,
        "{} does not follow from the table (line {:?}); write it again: STRATANN_BLESS=1 cargo test --workspace \
         --locked --test reference",
        path.display(),
        differs.map(|line| line + 1)
    );
}

/// The rows of a stage, each name once.
fn rows(stages: &[Stage], has: impl Fn(&Param) -> bool) -> Vec<(&'static GroupInfo, &'static Param)> {
    let mut all: Vec<(&GroupInfo, &Param)> = Vec::new();
    for (group, param) in stratann_params::rows(stages).filter(|(_, param)| has(param)) {
        if !all.iter().any(|known| known.1.name == param.name) {
            all.push((group, param));
        }
    }
    all
}

/// Every kind that has a parameter of this name.
fn kinds(stages: &[Stage], name: &str) -> Vec<IndexKind> {
    let has = |kind: &IndexKind| {
        stratann_params::named(stages, name).any(|(group, param)| group.kinds_of(param).contains(kind))
    };
    IndexKind::ALL.into_iter().filter(has).collect()
}

fn usual(group: &GroupInfo, param: &Param) -> String {
    match group.usual(param).filter(|_| !param.is_optional) {
        Some(value) => value.to_string(),
        None => param.usual.into(),
    }
}

/// The default of a parameter, or that of each kind.
fn usual_of_kinds(stage: Stage, name: &str) -> String {
    let mut all: Vec<(String, Vec<&str>)> = Vec::new();
    for (group, param) in stratann_params::named(&[stage], name) {
        let kinds = group.kinds_of(param).iter().map(|kind| kind.name());
        let usual = usual(group, param);
        match all.iter_mut().find(|known| known.0 == usual) {
            Some(known) => known.1.extend(kinds),
            None => all.push((usual, kinds.collect())),
        }
    }
    match all.as_slice() {
        [(usual, _)] => usual.clone(),
        _ => all
            .iter()
            .map(|(usual, kinds)| format!("{usual} ({})", kinds.join(", ")))
            .collect::<Vec<_>>()
            .join("; "),
    }
}

fn choices(param: &Param) -> String {
    let each = param.choices().iter().map(|choice| {
        format!("`{}`: {}", choice.name, choice.help.split_whitespace().collect::<Vec<_>>().join(" "))
    });
    each.collect::<Vec<_>>().join("; ")
}

/// The stages, in the order of the reference.
const STAGES: [(Stage, &str); 15] = [
    (Stage::Build, "build"),
    (Stage::Open, "open"),
    (Stage::Search, "search"),
    (Stage::Partition, "cluster partition"),
    (Stage::Serve, "serve"),
    (Stage::Simulate, "simulate"),
    (Stage::Bench, "bench"),
    (Stage::Tune, "tune"),
    (Stage::Truth, "groundtruth"),
    (Stage::Explain, "explain"),
    (Stage::Doctor, "doctor"),
    (Stage::Profile, "profile"),
    (Stage::Update, "insert and delete"),
    (Stage::Replan, "replan"),
    (Stage::Collection, "collection"),
];

#[test]
fn the_reference_follows_from_the_table() {
    let mut text = String::from(
        "# Reference of parameters\n\nEvery parameter of builds, open indexes, searches, partitions, servers, \
         simulations, measurements, changes and collections,\nas the table in `crates/params` declares it. A parameter that a kind of index does not have is \
         refused on every surface. Fields of requests, keywords in\nPython and keys of a server's file have the same \
         name with underscores; a flag that is on by default is turned off by its\noption, and by `false` \
         elsewhere. Keys of the file without an option are those without one here.\n",
    );
    for (stage, title) in STAGES {
        for group in GROUPS.iter().filter(|group| group.stage == stage) {
            write!(text, "\n## {title}: {}\n\n", group.heading()).unwrap();
            text += "| option | name | for | default | range | |\n|---|---|---|---|---|---|\n";
            for param in group.params {
                text += &row(group, param);
            }
            for shorthand in group.shorthands {
                let sets =
                    shorthand.sets.iter().map(|(name, value)| format!("`{name}` = {}", Value::from(*value)));
                writeln!(
                    text,
                    "| `--{}` | | | | | {}: {} |",
                    shorthand.name.replace('_', "-"),
                    shorthand.help.split_whitespace().collect::<Vec<_>>().join(" "),
                    sets.collect::<Vec<_>>().join(", ")
                )
                .unwrap();
            }
        }
    }
    follow("docs/book/reference.md", &text);
}

fn row(group: &GroupInfo, param: &Param) -> String {
    let option = match (group.option(param), param.short) {
        (Some(option), Some(short)) => format!("`-{short}`, `--{option}`"),
        (Some(option), None) => format!("`--{option}`"),
        (None, Some(short)) => format!("`-{short}`"),
        (None, None) => String::new(),
    };
    let kinds = group.kinds_of(param);
    let mut of: Vec<&str> = match kinds.len() == IndexKind::ALL.len() {
        true => Vec::new(),
        false => kinds.iter().map(|kind| kind.name()).collect(),
    };
    match param.places {
        [Place::Servers] => of.push("servers only"),
        [Place::Part] => of.push("servers of a partition"),
        [Place::MemoryNodes] => of.push("memory nodes only"),
        places if !places.contains(&Place::Servers) && group.stage == Stage::Search => of.push("not servers"),
        _ => {}
    }
    if param.level == Level::Research {
        of.push("to compare");
    }
    let others: Vec<String> = STAGES
        .iter()
        .filter(|(stage, _)| param.also.contains(stage))
        .map(|(_, title)| format!("also `{title}`"))
        .collect();
    of.extend(others.iter().map(String::as_str));
    let mut help = param.long_help().join(". ").trim_end_matches('.').to_string();
    if !param.off.is_empty() {
        help += &format!(". Off: {}", param.off.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    if !param.choices().is_empty() {
        help += &format!(". {}", choices(param));
    }
    format!(
        "| {option} | `{}` | {} | {} | {} | {} |\n",
        param.name,
        of.join(", "),
        usual(group, param).replace('|', "or"),
        param.range_text().unwrap_or_default(),
        help.replace('|', "or")
    )
}

#[test]
fn man_pages_follow_from_the_help() {
    let overview = text_of(&["--help"]);
    let commands: Vec<&str> = overview
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(commands.len() > 15, "{overview}");
    follow("docs/man/stratann.1", &page("stratann", &overview));
    for command in commands {
        // A command with commands of its own has no options of kinds.
        let has_all = run(&[command, "--help-all"]).status.success();
        let help = text_of(&[command, if has_all { "--help-all" } else { "--help" }]);
        follow(&format!("docs/man/stratann-{command}.1"), &page(&format!("stratann-{command}"), &help));
    }
    for (command, inner) in [
        ("cluster", "partition"),
        ("collection", "create"),
        ("collection", "limit"),
        ("collection", "upsert"),
        ("collection", "delete"),
        ("collection", "get"),
        ("collection", "scroll"),
        ("collection", "schema"),
        ("collection", "import"),
        ("collection", "export"),
    ] {
        let name = format!("stratann-{command}-{inner}");
        follow(&format!("docs/man/{name}.1"), &page(&name, &text_of(&[command, inner, "--help-all"])));
    }
}

fn text_of(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A manual page of a help text: its headings are sections, all else is as it is.
fn page(name: &str, help: &str) -> String {
    let (about, rest) = help.split_once('\n').unwrap();
    let plain = |line: &str| {
        let line = line.trim_end().replace('\\', "\\e").replace('-', "\\-");
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    };
    let mut page = format!(
        ".TH {} 1\n.SH NAME\n{} \\- {}\n.SH DESCRIPTION\n.nf\n",
        name.to_uppercase(),
        plain(name),
        plain(about)
    );
    let mut is_after_usage = false;
    for line in rest.trim().lines() {
        is_after_usage |= line.starts_with("Usage:");
        match line.strip_suffix(':').filter(|_| is_after_usage && !line.starts_with(' ')) {
            Some(heading) => writeln!(page, ".fi\n.SH {}\n.nf", plain(&heading.to_uppercase())).unwrap(),
            None => writeln!(page, "{}", plain(line)).unwrap(),
        }
    }
    page + ".fi\n"
}

/// Arguments of a function in Python that follow from the table.
struct Function {
    file: &'static str,
    name: &'static str,
    stage: Stage,
    has: fn(&Param) -> bool,
}

const FUNCTIONS: [Function; 10] = [
    Function {
        file: "python/stratann/_build.py",
        name: "build",
        stage: Stage::Build,
        has: |param| {
            !["metric", "ram_budget", "threads", "seed", "ids", "on_bad_row", "force", "resume"]
                .contains(&param.name)
        },
    },
    Function {
        file: "python/stratann/_open.py",
        name: "open",
        stage: Stage::Open,
        has: |param| !["ram_budget", "cache_budget"].contains(&param.name),
    },
    Function {
        file: "python/stratann/_index.py",
        name: "search",
        stage: Stage::Search,
        has: |param| !["k", "recall"].contains(&param.name),
    },
    Function {
        file: "python/stratann/_index.py",
        name: "explain",
        stage: Stage::Search,
        has: |param| {
            ![
                "k",
                "recall",
                "width",
                "threads",
                "mode",
                "in_flight",
                "admission",
                "io",
                "merge",
                "batch",
                "doorbell",
            ]
            .contains(&param.name)
                && param.places.contains(&Place::Folder)
        },
    },
    Function {
        file: "python/stratann/_together.py",
        name: "together",
        stage: Stage::Search,
        has: |param| !["k", "recall"].contains(&param.name) && param.places.contains(&Place::Folder),
    },
    Function {
        file: "python/stratann/_client.py",
        name: "client",
        stage: Stage::Search,
        has: |param| !["k", "recall"].contains(&param.name) && param.in_requests,
    },
    Function {
        file: "python/stratann/_build.py",
        name: "groundtruth",
        stage: Stage::Truth,
        has: |param| !["k", "metric"].contains(&param.name),
    },
    Function { file: "python/stratann/_index.py", name: "tune", stage: Stage::Tune, has: |_| true },
    Function { file: "python/stratann/_index.py", name: "upsert", stage: Stage::Update, has: |_| true },
    Function { file: "python/stratann/_index.py", name: "delete", stage: Stage::Update, has: |_| true },
];

/// The type of an argument; one of a kind has no value unless it is given.
fn argument(group: &GroupInfo, param: &Param) -> String {
    let of = match (param.of, param.unit) {
        (Type::Flag, _) => "bool",
        (Type::Whole, Unit::Bytes) | (Type::AutoOrWhole, _) => "int | str",
        (Type::Whole, Unit::None) => "int",
        (Type::Real, _) => "float",
        (Type::Path, _) => "Path",
        (Type::Text, _) => "str",
        (Type::Choice(_), _) => "str",
    };
    if param.is_list {
        return format!("{}: Sequence[{of}] | None = None", param.name);
    }
    let is_of_all = group.kinds_of(param).len() == IndexKind::ALL.len();
    match group.usual(param).filter(|_| is_of_all && !param.is_optional) {
        Some(Value::Flag(flag)) => format!("{}: {of} = {}", param.name, if flag { "True" } else { "False" }),
        Some(Value::Text(text)) => format!("{}: {of} = \"{text}\"", param.name),
        Some(value) => format!("{}: {of} = {value}", param.name),
        None => format!("{}: {of} | None = None", param.name),
    }
}

/// Options of the command line as Python names them.
fn in_python(text: &str) -> String {
    let mut text = text.replace("--kind auto", "kind=\"auto\"");
    let mut names: Vec<(String, &str)> = GROUPS
        .iter()
        .flat_map(|group| group.params.iter().filter_map(|param| Some((group.option(param)?, param.name))))
        .collect();
    names.sort_by_key(|(option, _)| std::cmp::Reverse(option.len()));
    for (option, name) in names {
        text = text.replace(&format!("--{option}"), &format!("`{name}`"));
    }
    text
}

/// The text of an argument, in lines that fit.
fn documented(param: &Param, stage: Stage, indent: &str) -> String {
    let mut all = String::new();
    let kinds = kinds(&[stage], param.name);
    if kinds.len() < IndexKind::ALL.len() {
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        all += &format!("of a {}: ", names.join(", "));
    }
    let help = param.long_help().join(". ").trim_end_matches('.').to_string();
    let mut letters = help.chars();
    let first = letters.next().map(|c| c.to_lowercase().to_string()).unwrap_or_default();
    all += &(if help.starts_with("I/O") { help.clone() } else { first + letters.as_str() });
    if !param.choices().is_empty() {
        all += &format!(": {}", choices(param).replace('`', "``"));
    }
    let usual = usual_of_kinds(stage, param.name);
    if !usual.is_empty() {
        all += &format!("; {usual}");
    }
    let mut lines = String::new();
    let mut line = format!("{indent}{}:", param.name);
    for word in in_python(&all).split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > 118 {
            writeln!(lines, "{line}").unwrap();
            line = format!("{indent}    {word}");
        } else {
            line = format!("{line} {word}");
        }
    }
    lines + &line + ".\n"
}

#[test]
fn arguments_in_python_follow_from_the_table() {
    for file in ["_build.py", "_open.py", "_index.py", "_together.py", "_client.py"] {
        let path = format!("python/stratann/{file}");
        let mut text = std::fs::read_to_string(project().join(&path)).unwrap();
        for function in FUNCTIONS.iter().filter(|function| function.file == path) {
            let rows = rows(&[function.stage], |param| param.in_python && (function.has)(param));
            let begin = format!("# parameters: {}\n", function.name);
            text = between(&text, &begin, "# end of parameters", |indent| {
                rows.iter().map(|(group, param)| format!("{indent}{},\n", argument(group, param))).collect()
            });
            let begin = format!(".. parameters: {}\n", function.name);
            if text.contains(&begin) {
                text = between(&text, &begin, ".. end of parameters", |indent| {
                    rows.iter().map(|(_, param)| documented(param, function.stage, indent)).collect()
                });
            }
        }
        follow(&path, &text);
    }
}

/// The text with other lines between two lines.
fn between(text: &str, begin: &str, end: &str, lines: impl Fn(&str) -> String) -> String {
    let at = text.find(begin).unwrap_or_else(|| panic!("there is no line {begin:?}"));
    let indent = &text[text[..at].rfind('\n').map_or(0, |newline| newline + 1)..at];
    let first = at + begin.len();
    let last = first + text[first..].find(end).unwrap();
    let last = text[..last].rfind('\n').map_or(last, |newline| newline + 1);
    format!("{}{}{}", &text[..first], lines(indent), &text[last..])
}
