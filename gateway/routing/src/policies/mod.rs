//! One policy per file; `PolicyKind` is the list of them.

pub(crate) mod cache_aware;
pub(crate) mod power_of_two;
pub(crate) mod random;
pub(crate) mod round_robin;
