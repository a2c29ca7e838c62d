//! Every parameter for every kind, place and surface: accepted where it is, refused with the right words where it is
//! not.
#![allow(missing_docs)]

use stratann_params::{
    GROUPS, Given, GroupInfo, IndexKind, Level, Param, Place, RETIRED, Scope, Stage, Surface, Type, Value,
    retired, rows,
};

const BUILD: &[Stage] = &[Stage::Build];
const SEARCH: &[Stage] = &[Stage::Open, Stage::Search];
const PARTITION: &[Stage] = &[Stage::Partition];
const SERVE: &[Stage] = &[Stage::Serve];
const SIMULATE: &[Stage] = &[Stage::Simulate];
const BENCH: &[Stage] = &[Stage::Bench];
const EXPLAIN: &[Stage] = &[Stage::Explain];
const TUNE: &[Stage] = &[Stage::Tune];
const TRUTH: &[Stage] = &[Stage::Truth];
const DOCTOR: &[Stage] = &[Stage::Doctor];
const PROFILE: &[Stage] = &[Stage::Profile];
const UPDATE: &[Stage] = &[Stage::Update];
const REPLAN: &[Stage] = &[Stage::Replan];
const COLLECTION: &[Stage] = &[Stage::Collection];
const SURFACES: [Surface; 4] = [Surface::CommandLine, Surface::Request, Surface::Python, Surface::File];

/// The commands, each with the places that it may have.
const COMMANDS: [(&[Stage], &[Place]); 16] = [
    (BUILD, &[Place::Folder]),
    (SEARCH, Place::ALL),
    (SEARCH, &[Place::Collections]),
    (PARTITION, &[Place::Folder]),
    (SERVE, Place::LOCAL),
    (SERVE, &[Place::Collections]),
    (SIMULATE, &[Place::Folder]),
    (BENCH, &[Place::Folder, Place::Servers]),
    (EXPLAIN, &[Place::Folder, Place::MemoryNodes]),
    (TUNE, &[Place::Folder]),
    (TRUTH, &[Place::Folder]),
    (DOCTOR, &[Place::Folder]),
    (PROFILE, &[Place::Folder]),
    (UPDATE, &[Place::Folder, Place::MemoryNodes]),
    (REPLAN, &[Place::Folder]),
    (COLLECTION, &[Place::Collections]),
];

/// A value that a row may have.
fn value(group: &GroupInfo, param: &Param) -> Value {
    let least = Some(*param.range.start()).filter(|least| least.is_finite()).unwrap_or(1.0);
    let value = match param.of {
        Type::Flag => Value::Flag(true),
        Type::Whole | Type::AutoOrWhole => Value::Whole(least.max(4.0).min(*param.range.end()) as u64),
        Type::Real => Value::Real(least.max(1.0).min(*param.range.end())),
        Type::Path => Value::Path("file".into()),
        Type::Text => Value::Text("text".into()),
        Type::Choice(choices) => Value::Text(choices[0].name.into()),
    };
    assert!(group.accepts(param, &value), "{} {value}", param.name);
    value
}

/// The rows of some stages by name, each with those of the same name.
fn names(stages: &'static [Stage]) -> Vec<(&'static str, Vec<(&'static GroupInfo, &'static Param)>)> {
    let mut all: Vec<(&str, Vec<_>)> = Vec::new();
    for (group, param) in rows(stages) {
        match all.iter_mut().find(|known| known.0 == param.name) {
            Some(known) => known.1.push((group, param)),
            None => all.push((param.name, vec![(group, param)])),
        }
    }
    all
}

/// Gives one parameter, and one that it needs.
fn given(
    stages: &'static [Stage],
    rows: &[(&GroupInfo, &'static Param)],
    kind: IndexKind,
    scope: &Scope,
) -> Given {
    let mut given = Given::default();
    let own = rows.iter().find(|(group, param)| group.kinds_of(param).contains(&kind)).unwrap_or(&rows[0]);
    given.push(own.1.name, value(own.0, own.1), own.0.name_on(scope.surface, own.1));
    for needed in own.1.requires {
        let all = names(stages);
        let (_, rows) = all.iter().find(|row| row.0 == *needed).unwrap();
        if let Some((group, param)) = rows.iter().find(|(group, param)| group.kinds_of(param).contains(&kind))
        {
            given.push(param.name, value(group, param), group.name_on(scope.surface, param));
            break;
        }
    }
    given
}

#[test]
fn every_row_is_accepted_where_it_is_and_refused_elsewhere() {
    let (mut accepted, mut foreign, mut misplaced) = (0, 0, 0);
    for (stages, places) in COMMANDS {
        for (name, rows) in names(stages) {
            for (&place, kind) in places.iter().flat_map(|place| IndexKind::ALL.map(|kind| (place, kind))) {
                for surface in SURFACES {
                    let scope = Scope { stages, kinds: vec![kind], place, surface };
                    let given = given(stages, &rows, kind, &scope);
                    let of_kind: Vec<_> =
                        rows.iter().filter(|(group, param)| group.kinds_of(param).contains(&kind)).collect();
                    let is_here = of_kind.iter().any(|(_, param)| param.places.contains(&place));
                    let checked = given.check(&scope);
                    let case = format!("{name} {kind:?} {place:?} {surface:?}: {checked:?}");
                    match (of_kind.is_empty(), is_here, checked) {
                        (false, true, Ok(())) => accepted += 1,
                        (true, _, Err(wrong)) => {
                            let shown = rows[0].0.name_on(surface, rows[0].1);
                            assert!(wrong.0.starts_with(&format!("{shown} is for ")), "{case}");
                            assert!(wrong.0.contains(kind.name()), "{case}");
                            let kinds = rows.iter().flat_map(|(group, param)| group.kinds_of(param));
                            kinds.for_each(|kind| assert!(wrong.0.contains(kind.name()), "{case}"));
                            assert!(
                                wrong.0.contains("leave it out") || wrong.0.contains("instead"),
                                "{case}"
                            );
                            foreign += 1;
                        }
                        (false, false, Err(wrong)) => {
                            assert!(wrong.0.contains("leave it out"), "{case}");
                            misplaced += 1;
                        }
                        _ => panic!("{case}"),
                    }
                }
            }
        }
    }
    assert!(foreign > 2000 && accepted > 3000 && misplaced > 800, "{foreign} {accepted} {misplaced}");
}

#[test]
fn a_refusal_names_what_the_kind_has_instead() {
    let search = |name, kind| {
        let scope =
            Scope { stages: SEARCH, kinds: vec![kind], place: Place::Folder, surface: Surface::CommandLine };
        let mut given = Given::default();
        given.push(name, Value::Whole(8), format!("--{}", str::replace(name, "_", "-")));
        given.check(&scope).unwrap_err().0
    };
    assert_eq!(
        search("search_list", IndexKind::GridIvf),
        "--search-list is for disk-graph or flat, and this index is a grid-ivf; give --nprobe instead"
    );
    assert_eq!(
        search("ef", IndexKind::HybridIvf),
        "--ef is for remote-hnsw, and this index is a hybrid-ivf; give --local-list instead"
    );
    let scope = Scope {
        stages: BUILD,
        kinds: vec![IndexKind::GridIvf],
        place: Place::Folder,
        surface: Surface::Python,
    };
    let mut given = Given::default();
    given.add(&scope, "clusters", Value::Whole(9)).unwrap();
    assert_eq!(
        given.check(&scope).unwrap_err().0,
        "clusters is for hybrid-ivf, and the kind is grid-ivf; give lists instead"
    );
}

#[test]
fn retired_parameters_name_what_replaces_them() {
    let replaced = "every kind builds codes of bits after a rotation, which need no training";
    for (surface, name, size) in [
        (Surface::CommandLine, "--code-kind", "--code-bytes"),
        (Surface::Python, "code_kind", "code_bytes"),
        (Surface::File, "code_kind", "code_bytes"),
    ] {
        for kinds in [vec![], vec![IndexKind::HybridIvf]] {
            let scope = Scope { stages: BUILD, kinds, place: Place::Folder, surface };
            let wrong = Given::default().add(&scope, "code_kind", Value::Text("opq".into())).unwrap_err().0;
            assert_eq!(wrong, format!("{name} is gone: {replaced}; choose their size by {size}"));
        }
        assert!(retired(SEARCH, "code_kind", surface).is_none());
    }
    for old in RETIRED {
        assert!(stratann_params::named(&[old.stage], old.name).next().is_none(), "{}", old.name);
        assert!(stratann_params::named(&[old.stage], old.instead).next().is_some(), "{}", old.instead);
    }
}

#[test]
fn misspelt_names_get_one_of_the_kind() {
    for (kind, name, near) in [
        (IndexKind::HybridIvf, "nprob", Some("nprobe")),
        (IndexKind::DiskGraph, "serch_list", Some("search_list")),
        (IndexKind::RemoteHnsw, "door_bell", Some("doorbell")),
        // A grid has no doorbell.
        (IndexKind::GridIvf, "door_bell", None),
        (IndexKind::GridIvf, "colour", None),
    ] {
        let scope =
            Scope { stages: SEARCH, kinds: vec![kind], place: Place::Folder, surface: Surface::Python };
        let wrong = Given::default().add(&scope, name, Value::Whole(1)).unwrap_err().0;
        match near {
            Some(near) => assert!(wrong.ends_with(&format!("use {near}")), "{wrong}"),
            None => assert!(wrong.ends_with("leave it out"), "{wrong}"),
        }
    }
}

#[test]
fn an_automatic_choice_is_among_the_kinds_that_have_the_options() {
    use IndexKind::{DiskGraph, Flat, HybridIvf};
    let among = [DiskGraph, HybridIvf, Flat];
    let kinds = |names: &[(&'static str, u64)]| {
        let mut given = Given::default();
        names.iter().for_each(|&(name, n)| given.push(name, Value::Whole(n), name.into()));
        given.kinds(BUILD, &among)
    };
    assert_eq!(kinds(&[]), Ok(among.to_vec()));
    assert_eq!(kinds(&[("seed", 7), ("search_budget", 9), ("calibration_queries", 9)]), Ok(among.to_vec()));
    assert_eq!(kinds(&[("degree", 9)]), Ok(vec![DiskGraph]));
    assert_eq!(kinds(&[("code_bytes", 9)]), Ok(vec![DiskGraph, HybridIvf]));
    let both = kinds(&[("degree", 9), ("clusters", 9)]).unwrap_err().0;
    assert!(both.starts_with("no kind of index has both degree and clusters"), "{both}");
    let other = kinds(&[("lists", 9)]).unwrap_err().0;
    assert!(
        other.starts_with("lists is for grid-ivf, and an automatic choice is among disk-graph"),
        "{other}"
    );
}

#[test]
fn rows_are_whole() {
    for group in GROUPS {
        for param in group.params {
            let help = param.short_help();
            assert!(!help.is_empty() && !help.ends_with('.'), "{}: {help}", param.name);
            let is_off_named = param.off.is_empty() || group.usual(param) == Some(Value::Flag(true));
            assert!(is_off_named, "{}: only what is on has help for off", param.name);
            if param.is_optional && !matches!(param.of, Type::Choice(_)) && param.level == Level::Usual {
                assert!(
                    !param.usual.is_empty()
                        || !param.requires.is_empty()
                        || param.is_required
                        || param.role == "effort",
                    "{}",
                    param.name
                );
            }
            for other in param.conflicts.iter().chain(param.requires) {
                assert!(
                    COMMANDS.iter().any(|(stages, _)| names(stages).iter().any(|row| row.0 == *other)),
                    "{other}"
                );
            }
        }
        for shorthand in group.shorthands {
            for (name, fixed) in shorthand.sets {
                let param = group.params.iter().find(|param| param.name == *name).expect(name);
                assert!(group.accepts(param, &(*fixed).into()), "{name}");
            }
        }
    }
}
