//! `StopMatcher`: cuts generated text at stop strings and stop regexes, however the text arrives in pieces.
//!
//! All stops are compiled into one non-deterministic automaton that is stepped byte by byte. Each thread of
//! it is a place where a match may have begun, so the oldest thread says exactly how much text has to be held
//! back:
//!
//! ```text
//! stops: "</s>", "\n\n"        text so far: "Hello <"
//!                                                 ^ oldest thread: "Hello " is safe, "<" is held
//! ```

use regex_automata::nfa::thompson::{Compiler, Config, NFA, State, WhichCaptures};
use regex_automata::util::look::Look;
use regex_automata::util::primitives::StateID;
use regex_automata::util::syntax;

use crate::error::StopError;

/// Most text, in bytes, that is held back for a regex. A longer match stops all the same, but what precedes
/// its last `REGEX_WINDOW` bytes was given out and is not cut off. Stop strings of any length are cut off whole.
pub const REGEX_WINDOW: usize = 1024;

/// Memory for the automaton of one request, in bytes. Bounds the work for each byte of text as well.
const AUTOMATON_LIMIT: usize = 512 * 1024;

/// What a piece of text gave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopProgress {
    /// Text that no stop can reach any more.
    pub text: String,
    /// The stop string or the regex that matched; from then on there is no more text.
    pub matched: Option<String>,
}

/// Finds the first stop in a text that arrives in pieces; how it is cut into pieces makes no difference.
///
/// The stop is the match that *ends* first, as it would be found while the text grows by single characters;
/// of several that end there, the one that begins first. A match is cut off together with the text after it;
/// with `no_stop_trim` only the text after it. Regexes have the syntax of the `regex` crate; `$` outside
/// multi-line mode matches only where the whole text ends.
pub struct StopMatcher {
    stops: Vec<String>,
    automaton: Option<Automaton>,
    no_stop_trim: bool,
    /// Text that may belong to a match.
    held: String,
    matched: Option<usize>,
}

impl StopMatcher {
    pub fn new(stops: Vec<String>, stop_regex: Vec<String>, no_stop_trim: bool) -> Result<Self, StopError> {
        let mut patterns = Vec::with_capacity(stops.len() + stop_regex.len());
        for stop in &stops {
            if stop.is_empty() {
                return Err(StopError::EmptyStop);
            }
            patterns.push(regex::escape(stop));
        }
        patterns.extend(stop_regex.iter().cloned());
        let window = stops.iter().map(String::len).fold(REGEX_WINDOW, usize::max);
        let automaton = if patterns.is_empty() {
            None
        } else {
            Some(Automaton::new(&patterns, window)?)
        };
        let stops = stops.into_iter().chain(stop_regex).collect();
        Ok(Self {
            stops,
            automaton,
            no_stop_trim,
            held: String::new(),
            matched: None,
        })
    }

    /// Takes more text and returns what is safe to give out. After a match all further text is dropped.
    pub fn push(&mut self, text: &str) -> StopProgress {
        let Some(automaton) = &mut self.automaton else {
            return StopProgress {
                text: text.to_owned(),
                matched: None,
            };
        };
        if self.matched.is_some() {
            return StopProgress {
                text: String::new(),
                matched: self.matched().map(str::to_owned),
            };
        }
        for c in text.chars() {
            if let Some(found) = automaton.step(c, &mut self.held) {
                return self.finish(found);
            }
        }
        let safe = self
            .held
            .floor_char_boundary(self.held.len() - automaton.held_len());
        StopProgress {
            text: self.held.drain(..safe).collect(),
            matched: None,
        }
    }

    /// Ends the text. What was held back is given out; a regex that asks for the end of the text, or looks at
    /// the next character, can match here.
    pub fn end(mut self) -> StopProgress {
        if self.matched.is_none()
            && let Some(found) = self.automaton.as_mut().and_then(Automaton::end)
        {
            return self.finish(found);
        }
        StopProgress {
            matched: self.matched().map(str::to_owned),
            text: self.held,
        }
    }

    /// The stop string or regex that matched so far.
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|pattern| self.stops[pattern].as_str())
    }

    fn finish(&mut self, found: Found) -> StopProgress {
        self.matched = Some(found.pattern);
        let mut text = std::mem::take(&mut self.held);
        if !self.no_stop_trim {
            text.truncate(text.floor_char_boundary(text.len() - found.len));
        }
        StopProgress {
            text,
            matched: self.matched().map(str::to_owned),
        }
    }
}

/// A match that ends where the automaton stands.
struct Found {
    pattern: usize,
    /// Bytes of text from its beginning to here.
    len: usize,
}

#[derive(Clone, Copy)]
struct Thread {
    state: StateID,
    /// Position in the text, in bytes, where this match would begin.
    start: usize,
}

/// The automaton of all stops and the threads that are alive in it.
struct Automaton {
    nfa: NFA,
    window: usize,
    /// Some regex looks at the character after a position (`\b`, `$`), so a position is settled one
    /// character later.
    looks_ahead: bool,
    position: usize,
    previous: Option<char>,
    /// Threads at the current position, oldest first. Settled: in states that read a byte, new beginnings
    /// included. Not settled (`looks_ahead` alone): as the last byte left them.
    threads: Vec<Thread>,
    /// `visited[state] == round`: the state already has a thread, which began earlier or at the same place.
    visited: Vec<u32>,
    round: u32,
    stack: Vec<StateID>,
}

impl Automaton {
    fn new(patterns: &[String], window: usize) -> Result<Self, StopError> {
        let mut parsed = Vec::with_capacity(patterns.len());
        for pattern in patterns {
            let invalid = |reason: String| StopError::Invalid {
                pattern: pattern.clone(),
                reason,
            };
            let expression = syntax::parse(pattern).map_err(|error| invalid(error.to_string()))?;
            match expression.properties().minimum_len() {
                Some(0) => {
                    return Err(StopError::MatchesEmpty {
                        pattern: pattern.clone(),
                    });
                }
                None => return Err(invalid("it can never match".to_owned())),
                Some(_) => parsed.push(expression),
            }
        }
        let config = Config::new()
            .which_captures(WhichCaptures::None)
            .nfa_size_limit(Some(AUTOMATON_LIMIT));
        let nfa = Compiler::new()
            .configure(config)
            .build_many_from_hir(&parsed)
            .map_err(|error| StopError::TooLarge {
                reason: error.to_string(),
            })?;
        let looks_ahead = nfa
            .look_set_any()
            .iter()
            .any(|look| !matches!(look, Look::Start | Look::StartLF));
        let visited = vec![0; nfa.states().len()];
        let mut automaton = Self {
            nfa,
            window,
            looks_ahead,
            position: 0,
            previous: None,
            threads: Vec::new(),
            visited,
            round: 0,
            stack: Vec::new(),
        };
        if !automaton.looks_ahead {
            automaton.settle(None);
        }
        Ok(automaton)
    }

    /// Reads one character, which is appended to `held` unless a match is found to end before it.
    fn step(&mut self, c: char, held: &mut String) -> Option<Found> {
        if self.looks_ahead
            && let Some(found) = self.settle(Some(c))
        {
            return Some(found);
        }
        let mut buffer = [0; 4];
        let bytes = c.encode_utf8(&mut buffer).as_bytes();
        for (at, &byte) in bytes.iter().enumerate() {
            if at > 0 {
                self.close(None); // no assertion and no beginning lies inside a character
            }
            self.read(byte);
        }
        held.push(c);
        self.position += bytes.len();
        self.previous = Some(c);
        if self.looks_ahead { None } else { self.settle(None) }
    }

    /// Ends the text.
    fn end(&mut self) -> Option<Found> {
        if self.looks_ahead { self.settle(None) } else { None }
    }

    /// Bytes of text before the current position that some thread still needs.
    fn held_len(&self) -> usize {
        self.threads
            .first()
            .map_or(0, |oldest| self.position - oldest.start)
    }

    /// Moves each thread over one byte; threads that cannot read it end.
    fn read(&mut self, byte: u8) {
        let nfa = &self.nfa;
        self.threads.retain_mut(|thread| {
            let next = match nfa.state(thread.state) {
                State::ByteRange { trans } => trans.matches_byte(byte).then_some(trans.next),
                State::Sparse(transitions) => transitions.matches_byte(byte),
                State::Dense(transitions) => transitions.matches_byte(byte),
                _ => None,
            };
            thread.state = next.unwrap_or(thread.state);
            next.is_some()
        });
    }

    /// Completes a position between two characters: forgets beginnings beyond the window, begins a new
    /// thread, and follows all of them. `next` is the character after the position, `None` at the end of the text.
    fn settle(&mut self, next: Option<char>) -> Option<Found> {
        let oldest = self.position.saturating_sub(self.window);
        for thread in &mut self.threads {
            thread.start = thread.start.max(oldest);
        }
        self.threads.push(Thread {
            state: self.nfa.start_anchored(),
            start: self.position,
        });
        self.close(Some(next))
    }

    /// Follows all threads to the states that read a byte. Oldest threads go first, so that of threads that
    /// meet in a state the oldest survives, and the first match found is the one that begins first.
    /// `next` is `None` inside a character.
    fn close(&mut self, next: Option<Option<char>>) -> Option<Found> {
        self.round += 1;
        let mut found: Option<Found> = None;
        let arrived = std::mem::take(&mut self.threads);
        for Thread { state, start } in arrived {
            self.stack.push(state);
            while let Some(state) = self.stack.pop() {
                if std::mem::replace(&mut self.visited[state.as_usize()], self.round) == self.round {
                    continue;
                }
                match self.nfa.state(state) {
                    State::ByteRange { .. } | State::Sparse(_) | State::Dense(_) => {
                        self.threads.push(Thread { state, start });
                    }
                    State::Look { look, next: after } => {
                        if next.is_some_and(|next| self.holds(*look, next)) {
                            self.stack.push(*after);
                        }
                    }
                    State::Union { alternates } => self.stack.extend(alternates.iter().rev()),
                    State::BinaryUnion { alt1, alt2 } => self.stack.extend([*alt2, *alt1]),
                    State::Capture { next, .. } => self.stack.push(*next),
                    State::Match { pattern_id } => {
                        let len = self.position - start;
                        let pattern = pattern_id.as_usize();
                        if found
                            .as_ref()
                            .is_none_or(|best| (best.len, pattern) < (len, best.pattern))
                        {
                            found = Some(Found { pattern, len });
                        }
                    }
                    State::Fail => {}
                }
            }
        }
        found
    }

    /// Whether an assertion holds between the previous character and `next`.
    fn holds(&self, look: Look, next: Option<char>) -> bool {
        let around: String = self.previous.into_iter().chain(next).collect();
        let at = self.previous.map_or(0, char::len_utf8);
        self.nfa.look_matcher().matches(look, around.as_bytes(), at)
    }
}

#[cfg(test)]
mod tests;
