//! `stratann collection schema`: which fields of payloads have indexes.

use std::collections::BTreeMap;

use serde::Serialize;
use stratann_payload::{IndexKind, Path, Schema};
use stratann_storage::{Error, Result};

use super::{PlaceRows, opened};
use crate::Verdict;
use crate::data_folder::plain;
use crate::output::{Output, table};
use crate::parameters::Parameters;
use crate::point_columns::field_indexes;
use crate::progress::ProgressPrinter;

/// Show or change which fields of payloads have indexes
///
/// Without --set and --remove it shows them. Filters find the same points with and without an index; a condition on a
/// field without one reads payloads.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct SchemaArgs {
    /// Name of the collection
    name: String,
    /// Indexes of a field in place of those that it has; may be repeated
    ///
    /// Kinds are keyword, integer, float, bool, datetime, uuid and text; several are separated by commas.
    #[arg(long, value_name = "FIELD=KIND")]
    set: Vec<String>,
    /// Remove the indexes of a field; may be repeated
    #[arg(long, value_name = "FIELD")]
    remove: Vec<String>,
    #[command(flatten)]
    table: Parameters<PlaceRows>,
}

const EXAMPLES: &str = "\
Examples:
  stratann collection schema --data shop.data shop
  stratann collection schema --data shop.data shop --set price=float --set title=keyword,text --remove brand
  stratann collection compact --data shop.data shop      # indexes the points that are there

Kinds: keyword (strings), integer (numbers with few different values), float (with many), bool, datetime, uuid, text
(words). A field is a path such as a.b, a[].b, or \"a.b\" for a name with a dot.";

#[derive(Serialize)]
struct Document<'a> {
    name: &'a str,
    schema: &'a Schema,
}

/// What options change.
#[derive(Debug)]
struct Change {
    set: BTreeMap<Path, Vec<IndexKind>>,
    remove: Vec<Path>,
}

impl Change {
    fn read(args: &SchemaArgs) -> Result<Change> {
        let set = field_indexes(&args.set)?;
        let path = |text: &String| {
            Path::parse(text).map_err(|e| Error::bad_input(format!("--remove: {}", e.message)))
        };
        let remove = args.remove.iter().map(path).collect::<Result<Vec<Path>>>()?;
        if let Some(field) = remove.iter().find(|field| set.contains_key(field)) {
            return Err(Error::bad_input(format!(
                "the field {field} is given with --set and --remove; leave one of them out"
            )));
        }
        Ok(Change { set, remove })
    }

    fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }

    fn apply(&self, schema: &mut Schema) -> Result<()> {
        for field in &self.remove {
            if !schema.remove(field) {
                return Err(Error::bad_input(format!("the field {field} has no index; leave --remove out")));
            }
        }
        for (field, kinds) in &self.set {
            schema.remove(field);
            for kind in kinds {
                schema.add(field.clone(), *kind)?;
            }
        }
        Ok(())
    }
}

/// Runs `stratann collection schema`.
pub(super) fn schema(args: &SchemaArgs, output: Output) -> Result<Verdict> {
    let change = Change::read(args)?;
    let printer = ProgressPrinter::new(output);
    let node = opened(&args.table, &printer)?;
    let collection = node.collection(&args.name).map_err(plain)?;
    let mut schema = collection.schema().map_err(plain)?;
    if !change.is_empty() {
        change.apply(&mut schema)?;
        collection.set_schema(&schema).map_err(plain)?;
    }
    printer.finish();
    output.result(&Document { name: &args.name, schema: &schema }, || text(&args.name, &schema))?;
    if !change.is_empty() {
        output.note(
            "note: segments that are made from now on have these indexes; `stratann collection compact` indexes all \
             points",
        );
    }
    Ok(Verdict::Fine)
}

fn text(name: &str, schema: &Schema) -> String {
    if schema.is_empty() {
        return format!("{name}: no field has an index\n");
    }
    let row = |(field, kinds): (&Path, &std::collections::BTreeSet<IndexKind>)| {
        let kinds: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        vec![field.to_string(), kinds.join(", ")]
    };
    table(&["field", "indexes"], &schema.fields().map(row).collect::<Vec<_>>())
}
