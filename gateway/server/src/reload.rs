//! A changed configuration, taken over while the gateway runs.

use std::{collections::BTreeMap, sync::Arc};

use smg_config::GatewayConfig;
use tokio::sync::mpsc;

use crate::{
    context::Context,
    workers::{PolicyRules, RosterError},
};

/// Takes over every configuration that comes. `started` is the one that the gateway began with.
pub async fn keep_up(
    cx: Arc<Context>,
    started: GatewayConfig,
    mut changed: mpsc::Receiver<Box<GatewayConfig>>,
) {
    while let Some(new) = changed.recv().await {
        if let Err(error) = take_over(&cx, &started, &new).await {
            tracing::error!(%error, "the configuration was not taken over as a whole");
        }
    }
}

async fn take_over(cx: &Context, started: &GatewayConfig, new: &GatewayConfig) -> Result<(), RosterError> {
    let fixed = started.fixed_changes(new);
    if !fixed.is_empty() {
        tracing::warn!(
            options = fixed.join(", "),
            "these options have changed and count from the next start on"
        );
    }
    let rules = PolicyRules::of(new);
    if let Err(error) = cx.fleet.policies.change(rules, || cx.fleet.served_models()) {
        tracing::error!(%error, "the policies stay as they are");
    }
    cx.fleet.set_aliases(aliases(new));
    let drain = started.requests.shutdown_grace_period();
    let replaced = cx.roster.replace(&new.server.worker_urls, drain).await?;
    tracing::info!(
        added = replaced.added.join(", "),
        removed = replaced.removed.join(", "),
        "the configuration was read again"
    );
    Ok(())
}

/// Model by alias.
pub fn aliases(config: &GatewayConfig) -> BTreeMap<String, String> {
    let aliases = config.models.model_aliases.iter();
    aliases
        .map(|alias| (alias.name.clone(), alias.model.clone()))
        .collect()
}
