//! The gate beside a model that looks at everything again each time, and what callers are promised.
#![allow(clippy::disallowed_methods, reason = "tests need some moment to begin with")]

mod model;
mod promises;
