//! Who may start now: permits, a queue that is fair between tenants, and rates. Nothing here performs I/O, waits or reads
//! a clock; the caller passes `now`, keeps what waits, and ends what has waited too long.
//!
//! - [`Gate`] counts what runs, and orders what waits: by [`Class`], then by the work that each tenant was given before,
//!   then by age. Whoever waits rises a class with each quarter of the longest wait.
//! - A tenant has [`Limits`] of its own: requests and tokens per minute, requests at once, and a weight.
//! - A [`Refusal`] says when to come back: when the bucket has refilled, or the next place is expected to be free.
//!
//! ```
//! use std::time::{Duration, Instant};
//! use smg_admission::{Ask, Class, Entered, Gate, GateParams, TenantId};
//!
//! let mut gate = Gate::new(GateParams { max_running: Some(1), ..GateParams::default() }, Instant::now());
//! let ask = |tenant| Ask { tenant: TenantId(tenant), class: Class::Default, tokens: 100 };
//! let Ok(Entered::Running(first)) = gate.enter(ask(1), Instant::now()) else { panic!() };
//! let Ok(Entered::Waiting { ticket, displaced: None }) = gate.enter(ask(2), Instant::now()) else { panic!() };
//! gate.leave(first, Some(140), Instant::now());
//! assert_eq!(gate.grant(Instant::now()), Some(ticket));
//! ```

mod bucket;
mod class;
mod gate;
mod holds;
mod queue;
mod tenant;
#[cfg(test)]
mod tests;

pub use class::Class;
pub use gate::{Ask, Entered, Gate, GateParams, Left, Rate, Reason, Refusal};
pub use queue::Ticket;
pub use tenant::{Limits, TenantId};
