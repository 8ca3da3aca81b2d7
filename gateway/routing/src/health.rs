//! Health of one worker as a state machine over probe results.

/// How many probe results in a row change a worker's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthParams {
    /// Failed probes in a row that take a ready worker out.
    pub failure_threshold: u32,
    /// Good probes in a row that bring an unhealthy worker back.
    pub success_threshold: u32,
}

impl Default for HealthParams {
    fn default() -> Self {
        Self {
            failure_threshold: 3,
            success_threshold: 2,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WorkerState {
    /// Known, but it has not yet said that it can serve.
    Loading,
    Ready,
    /// It served before and its probes fail now; it is still probed and may return.
    Unhealthy,
    /// No new request goes here; those in flight end normally.
    Draining,
}

impl WorkerState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Unhealthy => "unhealthy",
            Self::Draining => "draining",
        }
    }
}

/// What one health probe found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Healthy,
    /// The worker answered that it is still starting. It knows best, so no threshold applies.
    Loading,
    /// No connection, no answer in time, or an answer that says it is broken.
    Failed,
    /// Its connection broke and it does not answer a new one: no threshold applies.
    Gone,
}

#[derive(Clone, Debug)]
pub struct Health {
    params: HealthParams,
    state: WorkerState,
    failures: u32,
    successes: u32,
}

impl Health {
    pub fn new(params: HealthParams) -> Self {
        Self {
            params,
            state: WorkerState::Loading,
            failures: 0,
            successes: 0,
        }
    }

    pub fn state(&self) -> WorkerState {
        self.state
    }

    /// Failed probes in a row up to now.
    pub fn consecutive_failures(&self) -> u32 {
        self.failures
    }

    /// Takes in one probe result and returns the new state if it changed.
    pub fn observe(&mut self, probe: Probe) -> Option<WorkerState> {
        match probe {
            Probe::Healthy => {
                self.failures = 0;
                self.successes = self.successes.saturating_add(1);
            }
            Probe::Loading => {
                self.failures = 0;
                self.successes = 0;
            }
            Probe::Failed | Probe::Gone => {
                self.successes = 0;
                self.failures = self.failures.saturating_add(1);
            }
        }
        let next = match (self.state, probe) {
            (WorkerState::Draining, _) => WorkerState::Draining,
            (_, Probe::Loading) => WorkerState::Loading,
            // A worker says that it is ready only after a warm-up of its own: one good probe suffices.
            (WorkerState::Loading, Probe::Healthy) => WorkerState::Ready,
            (WorkerState::Unhealthy, Probe::Healthy) if self.successes >= self.params.success_threshold => {
                WorkerState::Ready
            }
            (WorkerState::Ready, Probe::Failed) if self.failures >= self.params.failure_threshold => {
                WorkerState::Unhealthy
            }
            (WorkerState::Ready, Probe::Gone) => WorkerState::Unhealthy,
            (state, _) => state,
        };
        self.enter(next)
    }

    /// Takes the worker out for good; no probe brings it back.
    pub fn drain(&mut self) -> Option<WorkerState> {
        self.enter(WorkerState::Draining)
    }

    fn enter(&mut self, next: WorkerState) -> Option<WorkerState> {
        let changed = next != self.state;
        self.state = next;
        changed.then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready() -> Health {
        let mut health = Health::new(HealthParams {
            failure_threshold: 3,
            success_threshold: 2,
        });
        assert_eq!(health.observe(Probe::Healthy), Some(WorkerState::Ready));
        health
    }

    #[test]
    fn a_new_worker_loads_until_its_first_good_probe() {
        let mut health = Health::new(HealthParams::default());
        assert_eq!(health.observe(Probe::Failed), None);
        assert_eq!(health.observe(Probe::Loading), None);
        assert_eq!(health.state(), WorkerState::Loading);
        assert_eq!(health.observe(Probe::Healthy), Some(WorkerState::Ready));
    }

    #[test]
    fn failures_must_come_in_a_row() {
        let mut health = ready();
        for probe in [
            Probe::Failed,
            Probe::Failed,
            Probe::Healthy,
            Probe::Failed,
            Probe::Failed,
        ] {
            assert_eq!(health.observe(probe), None);
        }
        assert_eq!(health.observe(Probe::Failed), Some(WorkerState::Unhealthy));
    }

    #[test]
    fn an_unhealthy_worker_returns_after_enough_successes_in_a_row() {
        let mut health = ready();
        for _ in 0..3 {
            health.observe(Probe::Failed);
        }
        for probe in [Probe::Healthy, Probe::Failed, Probe::Healthy] {
            assert_eq!(health.observe(probe), None);
        }
        assert_eq!(health.observe(Probe::Healthy), Some(WorkerState::Ready));
    }

    #[test]
    fn a_worker_that_is_gone_is_out_at_once_and_returns_like_an_unhealthy_one() {
        let mut health = ready();
        assert_eq!(health.observe(Probe::Gone), Some(WorkerState::Unhealthy));
        assert_eq!(health.consecutive_failures(), 1);
        assert_eq!(health.observe(Probe::Healthy), None);
        assert_eq!(health.observe(Probe::Healthy), Some(WorkerState::Ready));
        let mut loading = Health::new(HealthParams::default());
        assert_eq!(loading.observe(Probe::Gone), None);
    }

    #[test]
    fn a_restarted_worker_is_out_as_soon_as_it_says_that_it_loads() {
        let mut health = ready();
        assert_eq!(health.observe(Probe::Loading), Some(WorkerState::Loading));
        assert_eq!(health.observe(Probe::Healthy), Some(WorkerState::Ready));
    }

    #[test]
    fn no_probe_ends_draining() {
        let mut health = ready();
        assert_eq!(health.drain(), Some(WorkerState::Draining));
        for probe in [Probe::Healthy, Probe::Loading, Probe::Failed, Probe::Gone] {
            assert_eq!(health.observe(probe), None);
        }
        assert_eq!(health.state(), WorkerState::Draining);
    }
}
