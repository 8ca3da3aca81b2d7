//! The gate: everything that runs, waits, or is refused.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::bucket::Bucket;
use crate::class::Class;
use crate::holds::{HoldTime, Holds};
use crate::queue::{Queue, Ticket, Waiter};
use crate::tenant::{Limits, Tag, Tenant, TenantId};

/// Tenants that are remembered before idle ones are looked for.
const FEW_TENANTS: usize = 64;

/// Limits of all requests together, and of tenants.
#[derive(Debug, Clone)]
pub struct GateParams {
    /// Requests that run at once; `None` is no limit.
    pub max_running: Option<usize>,
    pub max_waiting: usize,
    /// The longest wait, after which the caller ends it.
    pub patience: Duration,
    pub rate: Option<Rate>,
    /// Of tenants that are not in `of_tenants`.
    pub limits: Limits,
    pub of_tenants: HashMap<TenantId, Limits>,
}

/// How many requests may start in a second, and how many at once after a pause. Neither may be 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    pub per_second: u64,
    pub burst: u64,
}

/// A request.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    pub tenant: TenantId,
    pub class: Class,
    /// What it is believed to cost, until [`Gate::leave`] tells.
    pub tokens: u64,
}

/// A request that was not refused. It holds its place or its permit until [`Gate::leave`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    Running(Ticket),
    Waiting {
        ticket: Ticket,
        /// It waits no longer: its place was given away.
        displaced: Option<Ticket>,
    },
}

/// Why a request cannot even wait, and after how long it could.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    pub retry_after: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// All permits and all places in the queue are taken.
    Full,
    /// More requests in a second than [`GateParams::rate`].
    Rate,
    /// The tenant's requests of this minute are used up.
    TenantRequests,
    /// The tenant's tokens of this minute are used up.
    TenantTokens,
    /// The tenant runs all it may, and there is no place to wait.
    TenantRunning,
}

/// What a request was when it left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    Running,
    Waiting,
    /// It was displaced, or left before.
    Gone,
}

/// Lets requests in. After [`Gate::leave`] call [`Gate::grant`] until it returns nothing.
#[derive(Debug)]
pub struct Gate {
    params: GateParams,
    rate: Option<Bucket>,
    queue: Queue,
    running: HashMap<Ticket, Waiter>,
    holds: Holds,
    hold_time: HoldTime,
    tenants: HashMap<TenantId, Tenant>,
    /// With so many tenants, idle ones are looked for.
    many_tenants: usize,
    /// The tag at which the last request started: where tenants that come back join.
    clock: Tag,
    next_ticket: u64,
}

impl Default for GateParams {
    /// Room for everything.
    fn default() -> Self {
        Self {
            max_running: None,
            max_waiting: usize::MAX,
            patience: Duration::from_secs(60),
            rate: None,
            limits: Limits::default(),
            of_tenants: HashMap::new(),
        }
    }
}

impl Gate {
    pub fn new(params: GateParams, now: Instant) -> Self {
        let bucket = |rate: Rate| Bucket::new(rate.burst, rate.per_second, Duration::from_secs(1), now);
        Self {
            rate: params.rate.map(bucket),
            queue: Queue::new(params.patience / Class::ALL.len() as u32),
            running: HashMap::new(),
            holds: Holds::default(),
            hold_time: HoldTime::default(),
            tenants: HashMap::new(),
            many_tenants: FEW_TENANTS,
            clock: 0,
            next_ticket: 0,
            params,
        }
    }

    pub fn num_running(&self) -> usize {
        self.holds.len()
    }

    pub fn num_waiting(&self) -> usize {
        self.queue.len()
    }

    /// Tenants that are remembered.
    pub fn num_tenants(&self) -> usize {
        self.tenants.len()
    }

    /// Those that wait, by the class that they asked for.
    pub fn depth(&self, class: Class) -> usize {
        self.queue.depth(class)
    }

    /// Takes a request in, to run or to wait, or refuses it. A refused one has used nothing of any limit.
    pub fn enter(&mut self, ask: Ask, now: Instant) -> Result<Entered, Refusal> {
        self.forget_idle(now);
        self.queue.rise(now);
        let limits = self.params.of_tenants.get(&ask.tenant);
        let limits = *limits.unwrap_or(&self.params.limits);
        let tenant = self.tenants.entry(ask.tenant);
        let tenant = tenant.or_insert_with(|| Tenant::new(limits, now));
        tenant.seen_at = now;
        if let Some(refusal) = too_early(tenant, self.rate.as_ref(), ask.tokens, now) {
            return Err(refusal);
        }
        let has_room = tenant.has_room();
        let runs = has_room && self.has_room() && self.queue.first().is_none();
        let displaced = if runs || self.queue.len() < self.params.max_waiting {
            None
        } else {
            let victim = self.queue.victim(ask.class, ask.tenant);
            Some(victim.ok_or_else(|| self.no_place(ask.tenant, now))?)
        };
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let waiter = Waiter {
            tenant: ask.tenant,
            tokens: ask.tokens,
            asked: ask.class,
            since: now,
        };
        self.rate.iter_mut().for_each(|bucket| bucket.take(1, now));
        if let Some(displaced) = displaced {
            self.leave(displaced, None, now);
        }
        self.with_tenant(ask.tenant, |tenant, clock| {
            tenant.take(ask.tokens, now);
            // Who comes back has saved nothing up.
            if tenant.num_waiting == 0 {
                tenant.tag = tenant.tag.max(*clock);
            }
            tenant.num_waiting += usize::from(!runs);
        });
        if runs {
            self.start(ticket, waiter, now);
            return Ok(Entered::Running(ticket));
        }
        self.queue.push(ticket, waiter);
        Ok(Entered::Waiting { ticket, displaced })
    }

    /// Lets the next waiting request run, if one may.
    pub fn grant(&mut self, now: Instant) -> Option<Ticket> {
        if !self.has_room() {
            return None;
        }
        self.queue.rise(now);
        let ticket = self.queue.first()?;
        let waiter = self.queue.remove(ticket)?;
        self.with_tenant(waiter.tenant, |tenant, _| tenant.num_waiting -= 1);
        self.start(ticket, waiter, now);
        Some(ticket)
    }

    /// Ends a request, whichever state it is in. `used` is what it cost in tokens, where that is known; one that waited has
    /// used nothing.
    pub fn leave(&mut self, ticket: Ticket, used: Option<u64>, now: Instant) -> Left {
        if let Some(waiter) = self.queue.remove(ticket) {
            self.rate.iter_mut().for_each(|bucket| bucket.give(1, now));
            self.with_tenant(waiter.tenant, |tenant, _| {
                tenant.give_back(waiter.tokens, now);
                tenant.num_waiting -= 1;
            });
            return Left::Waiting;
        }
        let Some(run) = self.running.remove(&ticket) else {
            return Left::Gone;
        };
        self.holds.remove(run.since, ticket);
        // What failed at once tells nothing about the others.
        if used != Some(0) {
            self.hold_time.learn(now.saturating_duration_since(run.since));
        }
        self.with_tenant(run.tenant, |tenant, _| {
            tenant.running.remove(run.since, ticket);
            tenant.seen_at = now;
            if let Some(used) = used {
                tenant.correct(run.tokens, used, now);
            }
        });
        Left::Running
    }

    /// When a request of this tenant is likely to find a place.
    pub fn until_place(&self, tenant: TenantId, now: Instant) -> Duration {
        let holds = match self.tenants.get(&tenant) {
            // Others' ends are of no use to it.
            Some(tenant) if !tenant.has_room() => &tenant.running,
            _ => &self.holds,
        };
        let one_ends = holds.until_one_ends(&self.hold_time, now);
        let one_gives_up = self.queue.oldest().map(|since| since + self.params.patience);
        let one_gives_up = one_gives_up.map(|at| at.saturating_duration_since(now));
        one_gives_up.map_or(one_ends, |wait| wait.min(one_ends))
    }

    fn has_room(&self) -> bool {
        self.params
            .max_running
            .is_none_or(|limit| self.holds.len() < limit)
    }

    fn start(&mut self, ticket: Ticket, waiter: Waiter, now: Instant) {
        let run = Waiter { since: now, ..waiter };
        self.running.insert(ticket, run);
        self.holds.add(now, ticket);
        self.with_tenant(run.tenant, |tenant, clock| {
            tenant.running.add(now, ticket);
            *clock = tenant.tag.max(*clock);
            tenant.tag = *clock + tenant.stride(run.tokens);
        });
    }

    /// Changes a tenant, then its place in the order.
    fn with_tenant(&mut self, id: TenantId, change: impl FnOnce(&mut Tenant, &mut Tag)) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            change(tenant, &mut self.clock);
            let may_start = tenant.num_waiting > 0 && tenant.has_room();
            self.queue.list(id, may_start.then_some(tenant.tag));
        }
    }

    fn no_place(&self, tenant: TenantId, now: Instant) -> Refusal {
        let has_room = self.tenants.get(&tenant).is_none_or(Tenant::has_room);
        Refusal {
            reason: if has_room {
                Reason::Full
            } else {
                Reason::TenantRunning
            },
            retry_after: self.until_place(tenant, now),
        }
    }

    fn forget_idle(&mut self, now: Instant) {
        if self.tenants.len() >= self.many_tenants {
            self.tenants.retain(|_, tenant| !tenant.is_forgettable(now));
            self.many_tenants = FEW_TENANTS.max(self.tenants.len() * 2);
        }
    }
}

/// The bucket that takes the longest to have enough.
fn too_early(tenant: &Tenant, rate: Option<&Bucket>, tokens: u64, now: Instant) -> Option<Refusal> {
    let waits = [
        (Reason::Rate, rate, 1),
        (Reason::TenantRequests, tenant.requests.as_ref(), 1),
        (Reason::TenantTokens, tenant.tokens.as_ref(), tokens),
    ];
    let refusals = waits.into_iter().filter_map(|(reason, bucket, tokens)| {
        let retry_after = bucket?.wait(tokens, now)?;
        Some(Refusal { reason, retry_after })
    });
    refusals.max_by_key(|refusal| refusal.retry_after)
}
