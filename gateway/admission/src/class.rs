//! How urgent a request is.

/// Classes of requests, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    System,
    Interactive,
    Default,
    Bulk,
}

impl Class {
    pub const ALL: [Self; 4] = [Self::System, Self::Interactive, Self::Default, Self::Bulk];

    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Interactive => "interactive",
            Self::Default => "default",
            Self::Bulk => "bulk",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// The class of a request's number: above 0 is urgent, below 0 can wait.
    pub fn of_priority(priority: i32) -> Self {
        match priority {
            1.. => Self::Interactive,
            0 => Self::Default,
            ..0 => Self::Bulk,
        }
    }

    /// The next more urgent one.
    pub(crate) fn raised(self) -> Option<Self> {
        match self {
            Self::System => None,
            Self::Interactive => Some(Self::System),
            Self::Default => Some(Self::Interactive),
            Self::Bulk => Some(Self::Default),
        }
    }
}
