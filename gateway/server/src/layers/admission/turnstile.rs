//! The gate of `smg-admission` among tasks: who has to wait sleeps until it is let in, sent away or out of patience.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use smg_admission::{Ask, Class, Entered, Gate, GateParams, Reason, Refusal, Ticket};
use tokio::{sync::oneshot, time::Instant};

use crate::telemetry::AdmissionGauges;

pub struct Turnstile {
    state: Arc<Mutex<State>>,
    patience: Duration,
}

struct State {
    gate: Gate,
    waiting: HashMap<Ticket, oneshot::Sender<Verdict>>,
}

enum Verdict {
    Granted,
    Displaced,
}

/// A request's place in the queue or its permit, whichever it has: either is given back when this is dropped.
pub struct Permit {
    state: Arc<Mutex<State>>,
    ticket: Ticket,
    /// What the request cost in tokens, where that is known.
    pub used: Option<u64>,
}

/// Why a request does not run, and after how long it could.
pub struct NotAdmitted {
    pub why: Why,
    pub retry_after: Duration,
}

pub enum Why {
    Refused(Reason),
    /// Its place in the queue went to another request.
    Displaced,
    TimedOut,
}

// === impl Turnstile ===

impl Turnstile {
    pub fn new(params: GateParams) -> Self {
        Self {
            patience: params.patience,
            state: Arc::new(Mutex::new(State {
                gate: Gate::new(params, now()),
                waiting: HashMap::new(),
            })),
        }
    }

    /// Returns once the request may run, with the time that it waited if it had to.
    pub async fn enter(&self, ask: Ask) -> Result<(Permit, Option<Duration>), NotAdmitted> {
        let (permit, told) = self.take_place(ask)?;
        let Some(told) = told else {
            return Ok((permit, None));
        };
        let since = Instant::now();
        let why = match tokio::time::timeout(self.patience, told).await {
            Ok(Ok(Verdict::Granted)) => return Ok((permit, Some(since.elapsed()))),
            // The sender goes with a verdict or with the permit, which is here.
            Ok(Ok(Verdict::Displaced) | Err(_)) => Why::Displaced,
            Err(_) => Why::TimedOut,
        };
        drop(permit);
        let retry_after = self.state.lock().gate.until_place(ask.tenant, now());
        Err(NotAdmitted { why, retry_after })
    }

    fn take_place(&self, ask: Ask) -> Result<(Permit, Option<oneshot::Receiver<Verdict>>), NotAdmitted> {
        let mut state = self.state.lock();
        let entered = state.gate.enter(ask, now()).map_err(NotAdmitted::from)?;
        let permit = |ticket| Permit {
            state: self.state.clone(),
            ticket,
            used: None,
        };
        match entered {
            Entered::Running(ticket) => Ok((permit(ticket), None)),
            Entered::Waiting { ticket, displaced } => {
                let (tell, told) = oneshot::channel();
                state.waiting.insert(ticket, tell);
                if let Some(displaced) = displaced {
                    state.tell(displaced, Verdict::Displaced);
                }
                Ok((permit(ticket), Some(told)))
            }
        }
    }

    pub fn gauges(&self) -> AdmissionGauges {
        let gate = &self.state.lock().gate;
        AdmissionGauges {
            running: gate.num_running(),
            tenants: gate.num_tenants(),
            depths: Class::ALL.map(|class| (class.name(), gate.depth(class))),
        }
    }
}

/// Of the clock that tests pause.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

// === impl State ===

impl State {
    fn tell(&mut self, ticket: Ticket, verdict: Verdict) {
        if let Some(tell) = self.waiting.remove(&ticket)
            && tell.send(verdict).is_err()
        {
            // Its permit gives back what it was granted.
            tracing::trace!("a request left in the moment of its verdict");
        }
    }
}

// === impl Permit ===

impl Drop for Permit {
    fn drop(&mut self) {
        let (mut state, now) = (self.state.lock(), now());
        state.waiting.remove(&self.ticket);
        state.gate.leave(self.ticket, self.used, now);
        while let Some(ticket) = state.gate.grant(now) {
            state.tell(ticket, Verdict::Granted);
        }
    }
}

impl From<Refusal> for NotAdmitted {
    fn from(refusal: Refusal) -> Self {
        Self {
            why: Why::Refused(refusal.reason),
            retry_after: refusal.retry_after,
        }
    }
}

#[cfg(test)]
mod tests {
    use smg_admission::TenantId;

    use super::*;

    fn turnstile(max_running: usize, max_waiting: usize) -> Turnstile {
        Turnstile::new(GateParams {
            max_running: Some(max_running),
            max_waiting,
            ..GateParams::default()
        })
    }

    fn ask(tenant: u128) -> Ask {
        Ask {
            tenant: TenantId(tenant),
            class: Class::Default,
            tokens: 1,
        }
    }

    fn counts(turnstile: &Turnstile) -> (usize, usize) {
        let state = turnstile.state.lock();
        assert_eq!(state.waiting.len(), state.gate.num_waiting());
        (state.gate.num_running(), state.gate.num_waiting())
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_is_refused_at_once_and_a_long_wait_is_ended() {
        let turnstile = turnstile(1, 1);
        let _running = turnstile.enter(ask(1)).await.ok().unwrap();
        let before = Instant::now();
        let (first, second) = tokio::join!(turnstile.enter(ask(1)), async {
            let refused = turnstile.enter(ask(1)).await;
            (refused, before.elapsed())
        });
        assert!(matches!(first.err().unwrap().why, Why::TimedOut));
        assert_eq!(before.elapsed().as_secs(), 60);
        let (refused, after) = second;
        assert!(matches!(refused.err().unwrap().why, Why::Refused(Reason::Full)));
        assert_eq!(after, Duration::ZERO);
        assert_eq!(counts(&turnstile), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_gets_the_permit_that_becomes_free() {
        let turnstile = turnstile(1, 1);
        let running = turnstile.enter(ask(1)).await.ok().unwrap();
        let (waited, ()) = tokio::join!(turnstile.enter(ask(1)), async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(running);
        });
        let (permit, waited) = waited.ok().unwrap();
        assert_eq!(waited.unwrap().as_secs(), 3);
        drop(permit);
        assert_eq!(counts(&turnstile), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_is_displaced_hears_it_at_once() {
        let turnstile = turnstile(1, 2);
        let running = turnstile.enter(ask(1)).await.ok().unwrap();
        let before = Instant::now();
        let enter = async |tenant| {
            let why = turnstile
                .enter(ask(tenant))
                .await
                .err()
                .map(|refused| refused.why);
            (why, before.elapsed().as_secs())
        };
        let (first, last, modest, ()) = tokio::join!(enter(1), enter(1), enter(2), async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(running);
        });
        assert!(matches!(last, (Some(Why::Displaced), 0)));
        assert!(matches!((first, modest), ((None, 3), (None, 3))));
        assert_eq!(counts(&turnstile), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_leaves_while_it_is_granted_passes_the_permit_on() {
        let turnstile = turnstile(1, 2);
        let running = turnstile.enter(ask(1)).await.ok().unwrap();
        let mut leaving = Box::pin(turnstile.enter(ask(1)));
        let mut staying = Box::pin(turnstile.enter(ask(1)));
        assert!(futures::poll!(leaving.as_mut()).is_pending());
        assert!(futures::poll!(staying.as_mut()).is_pending());
        // It was told, and has not heard it.
        drop(running);
        assert_eq!(counts(&turnstile), (1, 1));
        drop(leaving);
        let (permit, _) = staying.await.ok().unwrap();
        assert_eq!(counts(&turnstile), (1, 0));
        drop(permit);
        assert_eq!(counts(&turnstile), (0, 0));
    }
}
