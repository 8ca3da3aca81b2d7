//! What waits, and in which order it is let in.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::class::Class;
use crate::tenant::{Tag, TenantId};

/// One request between [`crate::Gate::enter`] and [`crate::Gate::leave`]. Later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(crate) u64);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiter {
    pub tenant: TenantId,
    pub tokens: u64,
    pub asked: Class,
    pub since: Instant,
}

/// A line per class and tenant. Every operation takes time in the logarithm of what waits.
#[derive(Debug)]
pub(crate) struct Queue {
    /// A waiter rises a class each time it has waited for this long.
    rise_after: Duration,
    waiters: BTreeMap<Ticket, (Waiter, Class)>,
    lines: BTreeMap<(Class, TenantId), BTreeSet<Ticket>>,
    /// The lines of tenants that may start another request; the first line of the set is next.
    order: BTreeSet<(Class, Tag, TenantId)>,
    /// The tags under which tenants stand in `order`.
    listed: HashMap<TenantId, Tag>,
    /// The lines by length.
    crowds: BTreeSet<(Class, usize, TenantId)>,
    rises: BTreeSet<(Instant, Ticket)>,
    depth: [usize; Class::ALL.len()],
}

impl Queue {
    pub fn new(rise_after: Duration) -> Self {
        Self {
            rise_after: rise_after.max(Duration::from_nanos(1)),
            waiters: BTreeMap::new(),
            lines: BTreeMap::new(),
            order: BTreeSet::new(),
            listed: HashMap::new(),
            crowds: BTreeSet::new(),
            rises: BTreeSet::new(),
            depth: [0; Class::ALL.len()],
        }
    }

    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// By the class that was asked for.
    pub fn depth(&self, class: Class) -> usize {
        self.depth[class as usize]
    }

    /// Since when the one that waits longest does so.
    pub fn oldest(&self) -> Option<Instant> {
        self.waiters
            .first_key_value()
            .map(|(_, (waiter, _))| waiter.since)
    }

    pub fn push(&mut self, ticket: Ticket, waiter: Waiter) {
        self.waiters.insert(ticket, (waiter, waiter.asked));
        self.depth[waiter.asked as usize] += 1;
        self.plan_rise(ticket, waiter.asked, waiter.since);
        self.line_up(ticket, waiter.asked, waiter.tenant);
    }

    pub fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        let (waiter, class) = self.waiters.remove(&ticket)?;
        self.depth[waiter.asked as usize] -= 1;
        self.leave_line(ticket, class, waiter.tenant);
        self.rises.remove(&(self.next_rise(&waiter, class), ticket));
        Some(waiter)
    }

    /// The tenant may start another request, after those with lesser tags; `None`: it may not.
    pub fn list(&mut self, tenant: TenantId, tag: Option<Tag>) {
        let old = match tag {
            Some(tag) => self.listed.insert(tenant, tag),
            None => self.listed.remove(&tenant),
        };
        if old == tag {
            return;
        }
        for class in Class::ALL {
            old.map(|old| self.order.remove(&(class, old, tenant)));
            if let Some(tag) = tag.filter(|_| self.lines.contains_key(&(class, tenant))) {
                self.order.insert((class, tag, tenant));
            }
        }
    }

    /// Who is to be let in next.
    pub fn first(&self) -> Option<Ticket> {
        let (class, _, tenant) = self.order.first()?;
        self.lines.get(&(*class, *tenant))?.first().copied()
    }

    /// Raises those that have waited long enough.
    pub fn rise(&mut self, now: Instant) {
        while let Some((at, ticket)) = self.rises.first().copied().filter(|(at, _)| *at <= now) {
            self.rises.remove(&(at, ticket));
            let Some((waiter, class)) = self.waiters.get_mut(&ticket) else {
                continue;
            };
            let Some(raised) = class.raised() else { continue };
            let (tenant, old) = (waiter.tenant, std::mem::replace(class, raised));
            self.leave_line(ticket, old, tenant);
            self.line_up(ticket, raised, tenant);
            self.plan_rise(ticket, raised, at);
        }
    }

    /// Who has to leave for a request of this class and tenant: one that is less urgent, or, where none is, one of a
    /// tenant that has at least two more in the line. The last of the longest line of the least urgent class.
    pub fn victim(&self, class: Class, tenant: TenantId) -> Option<Ticket> {
        let (lowest, longest, crowded) = *self.crowds.last()?;
        let own = self.lines.get(&(class, tenant)).map_or(0, BTreeSet::len);
        let gives_way = class < lowest || class == lowest && longest >= own + 2;
        let line = self.lines.get(&(lowest, crowded)).filter(|_| gives_way)?;
        line.last().copied()
    }

    fn line_up(&mut self, ticket: Ticket, class: Class, tenant: TenantId) {
        let line = self.lines.entry((class, tenant)).or_default();
        self.crowds.remove(&(class, line.len(), tenant));
        line.insert(ticket);
        self.crowds.insert((class, line.len(), tenant));
        if let Some(tag) = self.listed.get(&tenant) {
            self.order.insert((class, *tag, tenant));
        }
    }

    fn leave_line(&mut self, ticket: Ticket, class: Class, tenant: TenantId) {
        let Some(line) = self.lines.get_mut(&(class, tenant)) else {
            return;
        };
        self.crowds.remove(&(class, line.len(), tenant));
        line.remove(&ticket);
        if !line.is_empty() {
            self.crowds.insert((class, line.len(), tenant));
            return;
        }
        self.lines.remove(&(class, tenant));
        if let Some(tag) = self.listed.get(&tenant) {
            self.order.remove(&(class, *tag, tenant));
        }
    }

    fn plan_rise(&mut self, ticket: Ticket, class: Class, from: Instant) {
        if class.raised().is_some() {
            self.rises.insert((from + self.rise_after, ticket));
        }
    }

    fn next_rise(&self, waiter: &Waiter, class: Class) -> Instant {
        let num_rises = waiter.asked as u32 - class as u32;
        waiter.since + self.rise_after * (num_rises + 1)
    }
}
