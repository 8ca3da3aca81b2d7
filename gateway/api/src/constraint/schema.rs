//! Whether a JSON schema is one, looked at keyword by keyword. Takes time in proportion to the schema, and no stack.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::honour::first_unhonoured;
use super::keywords::{Form, form, is_schema, schemas_in, shown, wrong_value};
use super::references::{Names, Target};
use super::trail::{ROOT, Segment, Trail};

/// Where a schema is wrong, and what is wrong there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// A JSON pointer; empty for the schema as a whole.
    pub(crate) pointer: String,
    /// What follows the name of the place.
    pub(crate) predicate: String,
}

/// Fails where the schema is none. Returns the first keyword that no grammar backend of ours honours.
pub(crate) fn check(root: &Value) -> Result<Option<Fault>, Fault> {
    let mut walk = Walk::new(root);
    walk.run(root)?;
    let mut next = 0;
    while let Some(&reference) = walk.refs.get(next) {
        next += 1;
        if let Some(target) = walk.resolve(root, &reference)? {
            let place = walk.trail.step(ROOT, Segment::At(reference.pointer()));
            walk.to_visit.push((target, place));
            walk.run_pending()?;
        }
    }
    walk.check_circles()?;
    Ok(first_unhonoured(root, &walk.leads))
}

/// Calls `change` on each schema in `root`, in no particular order. What JSON Schema does not know is gone through too,
/// as references may lead there.
pub(crate) fn change_each(root: &mut Value, mut change: impl FnMut(&mut Map<String, Value>)) {
    let mut to_visit = vec![root];
    while let Some(value) = to_visit.pop() {
        match value {
            Value::Object(map) => {
                change(map);
                for (keyword, value) in map.iter_mut() {
                    match (form(keyword), value) {
                        (Form::SchemaMap | Form::Dependencies, Value::Object(named)) => {
                            to_visit.extend(named.values_mut());
                        }
                        (_, value) if !is_data(keyword) => to_visit.push(value),
                        _ => {}
                    }
                }
            }
            Value::Array(items) => to_visit.extend(items.iter_mut()),
            _ => {}
        }
    }
}

/// Keywords whose values are no schemas, whatever they look like.
fn is_data(keyword: &str) -> bool {
    matches!(keyword, "const" | "default" | "enum" | "example" | "examples")
}

/// A `$ref`.
#[derive(Clone, Copy)]
struct Reference<'a> {
    text: &'a str,
    place: usize,
    /// The schema that it stands in.
    from: *const Value,
}

impl<'a> Reference<'a> {
    fn pointer(&self) -> &'a str {
        self.text.trim_start_matches('#')
    }
}

/// Schema, by address → the one that its `$ref` leads to, and the pointer there.
pub(super) type Leads<'a> = HashMap<*const Value, (&'a Value, &'a str)>;

struct Walk<'a> {
    trail: Trail<'a>,
    to_visit: Vec<(&'a Value, usize)>,
    /// Schemas that were visited, by address.
    seen: HashSet<*const Value>,
    refs: Vec<Reference<'a>>,
    leads: Leads<'a>,
    names: Names<'a>,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Value) -> Self {
        Self {
            trail: Trail::default(),
            to_visit: vec![(root, ROOT)],
            seen: HashSet::new(),
            refs: Vec::new(),
            leads: HashMap::new(),
            names: Names::default(),
        }
    }

    fn run(&mut self, root: &'a Value) -> Result<(), Fault> {
        if root == &Value::Bool(false) {
            return Err(self.fault(
                ROOT,
                "allows no value at all; describe what the answer may be".to_owned(),
            ));
        }
        self.run_pending()
    }

    fn run_pending(&mut self) -> Result<(), Fault> {
        while let Some((value, place)) = self.to_visit.pop() {
            if !is_schema(value) {
                let predicate = format!(
                    "must be a schema (an object, true or false), got {}",
                    shown(value)
                );
                return Err(self.fault(place, predicate));
            }
            if let Value::Object(schema) = value
                && self.seen.insert(std::ptr::from_ref(value))
            {
                self.visit(value, schema, place)?;
            }
        }
        Ok(())
    }

    fn visit(&mut self, node: &'a Value, schema: &'a Map<String, Value>, place: usize) -> Result<(), Fault> {
        self.names.note(schema, place == ROOT);
        let first_child = self.to_visit.len();
        for (keyword, value) in schema {
            let form = form(keyword);
            let here = self.trail.step(place, Segment::Key(keyword));
            if let Some(predicate) = wrong_value(form, value) {
                return Err(self.fault(here, predicate));
            }
            if let ("$ref", Some(text)) = (keyword.as_str(), value.as_str()) {
                self.refs.push(Reference {
                    text,
                    place: here,
                    from: std::ptr::from_ref(node),
                });
            }
            for (segment, schema) in schemas_in(form, value) {
                let there = segment.map_or(here, |segment| self.trail.step(here, segment));
                self.to_visit.push((schema, there));
            }
        }
        // The first one is looked at first, so that errors name what stands first.
        self.to_visit[first_child..].reverse();
        Ok(())
    }

    /// The schema that a reference leads to; `None` where only the reader of a whole library of schemas can tell.
    fn resolve(&mut self, root: &'a Value, reference: &Reference<'a>) -> Result<Option<&'a Value>, Fault> {
        match self.names.target(root, reference.text) {
            Ok(Target::Schema(target)) => {
                self.leads.insert(reference.from, (target, reference.pointer()));
                Ok(Some(target))
            }
            Ok(Target::Elsewhere) => Ok(None),
            Err(predicate) => Err(self.fault(reference.place, predicate)),
        }
    }

    /// References that lead back to themselves describe nothing.
    fn check_circles(&self) -> Result<(), Fault> {
        // Schema → the number of the chain that passed it.
        let mut passed: HashMap<*const Value, usize> = HashMap::new();
        for (chain, reference) in self.refs.iter().enumerate() {
            let mut at = reference.from;
            while let Some((next, _)) = self.leads.get(&at) {
                match passed.insert(at, chain) {
                    Some(earlier) if earlier == chain => {
                        let predicate = "leads back to itself without describing anything".to_owned();
                        return Err(self.fault(reference.place, predicate));
                    }
                    Some(_) => break,
                    None => at = std::ptr::from_ref(*next),
                }
            }
        }
        Ok(())
    }

    fn fault(&self, place: usize, predicate: String) -> Fault {
        Fault {
            pointer: self.trail.pointer(place),
            predicate,
        }
    }
}
