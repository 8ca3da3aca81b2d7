//! What an operator says of a worker.

use std::collections::BTreeMap;

use smg_api::clip;
use smg_routing::{DEFAULT_PRIORITY, WorkerInfo, policy_names};

/// The label that names the policy of the worker's model.
pub const POLICY_LABEL: &str = "policy";

const PRIORITY: &str = "priority";
const COST: &str = "cost";
const MAX_LABELS: usize = 64;
const MAX_LABEL_BYTES: usize = 256;

#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    pub labels: BTreeMap<String, String>,
    pub priority: u32,
    pub cost: f32,
}

/// A field that cannot be.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct WrongField {
    pub field: String,
    pub message: String,
}

impl WrongField {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

impl Default for Given {
    fn default() -> Self {
        Self {
            labels: BTreeMap::new(),
            priority: DEFAULT_PRIORITY,
            cost: 1.0,
        }
    }
}

impl Given {
    pub fn check(&self) -> Result<(), WrongField> {
        if !smg_routing::COSTS.contains(&self.cost) {
            let (least, most) = (smg_routing::COSTS.start(), smg_routing::COSTS.end());
            let message = format!("cost must be a number from {least} to {most}, got {}", self.cost);
            return Err(WrongField::new(COST, message));
        }
        if self.labels.len() > MAX_LABELS {
            let message = format!("labels must be at most {MAX_LABELS}, got {}", self.labels.len());
            return Err(WrongField::new("labels", message));
        }
        self.labels
            .iter()
            .try_for_each(|(name, value)| check_label(name, value))
    }

    /// What the worker told of itself, with this over it.
    pub(super) fn over(&self, told: &WorkerInfo) -> WorkerInfo {
        let mut info = told.clone();
        info.labels.extend(
            self.labels
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        let weights = [
            (
                PRIORITY,
                self.priority.to_string(),
                self.priority != DEFAULT_PRIORITY,
            ),
            (COST, self.cost.to_string(), self.cost.to_bits() != 1f32.to_bits()),
        ];
        let given = weights.into_iter().filter(|(_, _, is_given)| *is_given);
        info.labels
            .extend(given.map(|(name, value, _)| (name.to_owned(), value)));
        info
    }
}

fn check_label(name: &str, value: &str) -> Result<(), WrongField> {
    let field = || format!("labels.{}", clip(name));
    if name.is_empty() || name.len() > MAX_LABEL_BYTES || value.len() > MAX_LABEL_BYTES {
        let message = format!("{} must have a name and at most {MAX_LABEL_BYTES} bytes", field());
        return Err(WrongField::new(field(), message));
    }
    if [PRIORITY, COST].contains(&name) {
        let message = format!("{} is a field of its own: give {name} beside labels", field());
        return Err(WrongField::new(field(), message));
    }
    if name == POLICY_LABEL && policy_names().all(|known| known != value) {
        let known: Vec<&str> = policy_names().collect();
        let message = format!(
            "{} must be one of {}, got `{}`",
            field(),
            known.join(", "),
            clip(value)
        );
        return Err(WrongField::new(field(), message));
    }
    Ok(())
}
