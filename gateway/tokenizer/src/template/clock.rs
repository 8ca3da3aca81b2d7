//! The `strftime_now` function: the time of day in Python's format language, in UTC.

use std::fmt::Write;

use minijinja::{Error, ErrorKind};
use time::OffsetDateTime;

pub(super) fn strftime_now(format: &str) -> Result<String, Error> {
    strftime(format, OffsetDateTime::now_utc())
}

/// Formats `now`, which is in UTC. A `-` behind the `%` drops leading zeros, as in the C library.
pub(super) fn strftime(format: &str, now: OffsetDateTime) -> Result<String, Error> {
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        let mut field = String::new();
        let known = directive.is_some_and(|directive| write_field(&mut field, directive, now));
        if !known {
            let given: String = directive.into_iter().collect();
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("strftime_now: unknown directive %{given} in {format:?}"),
            ));
        }
        if unpadded {
            let digits = field.trim_start_matches(['0', ' ']);
            out.push_str(if digits.is_empty() { "0" } else { digits });
        } else {
            out.push_str(&field);
        }
    }
    Ok(out)
}

/// Appends the field of one directive; false for an unknown directive.
fn write_field(out: &mut String, directive: char, now: OffsetDateTime) -> bool {
    let (date, time) = (now.date(), now.time());
    let month = date.month().to_string();
    let weekday = date.weekday().to_string();
    let days = u16::from(date.weekday().number_days_from_sunday());
    let hour12 = (time.hour() + 11) % 12 + 1;
    let written = match directive {
        'a' => write!(out, "{weekday:.3}"),
        'A' => write!(out, "{weekday}"),
        'b' | 'h' => write!(out, "{month:.3}"),
        'B' => write!(out, "{month}"),
        'c' => return all(out, "a b e H:M:S Y", now),
        'd' => write!(out, "{:02}", date.day()),
        'D' | 'x' => return all(out, "m/d/y", now),
        'e' => write!(out, "{:2}", date.day()),
        'f' => write!(out, "{:06}", time.microsecond()),
        'F' => return all(out, "Y-m-d", now),
        'H' => write!(out, "{:02}", time.hour()),
        'I' => write!(out, "{hour12:02}"),
        'j' => write!(out, "{:03}", date.ordinal()),
        'm' => write!(out, "{:02}", u8::from(date.month())),
        'M' => write!(out, "{:02}", time.minute()),
        'p' => write!(out, "{}", if time.hour() < 12 { "AM" } else { "PM" }),
        'R' => return all(out, "H:M", now),
        's' => write!(out, "{}", now.unix_timestamp()),
        'S' => write!(out, "{:02}", time.second()),
        'T' | 'X' => return all(out, "H:M:S", now),
        'u' => write!(out, "{}", date.weekday().number_from_monday()),
        'U' => write!(out, "{:02}", (date.ordinal() + 6 - days) / 7),
        'V' => write!(out, "{:02}", date.iso_week()),
        'w' => write!(out, "{days}"),
        'W' => write!(out, "{:02}", (date.ordinal() + 6 - (days + 6) % 7) / 7),
        'G' => write!(out, "{}", date.to_iso_week_date().0),
        'y' => write!(out, "{:02}", date.year().rem_euclid(100)),
        'Y' => write!(out, "{}", date.year()),
        'z' | 'Z' => Ok(()), // Python's datetime.now() has no zone
        'n' => writeln!(out),
        't' => write!(out, "\t"),
        '%' => write!(out, "%"),
        _ => return false,
    };
    written.is_ok()
}

/// A composed field: letters are directives, the rest is text.
fn all(out: &mut String, pattern: &str, now: OffsetDateTime) -> bool {
    pattern.chars().all(|c| {
        if c.is_ascii_alphabetic() {
            return write_field(out, c, now);
        }
        out.push(c);
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_python() {
        // 2024-02-09 17:05:03.004500; expected values by Python's datetime.strftime
        let now = OffsetDateTime::from_unix_timestamp_nanos(1_707_498_303_004_500_000).unwrap();
        let cases = [
            ("%Y-%m-%d", "2024-02-09"),
            ("%d %B %Y", "09 February 2024"),
            ("%-d %b %y, %A %a", "9 Feb 24, Friday Fri"),
            ("%H:%M:%S.%f %I%p", "17:05:03.004500 05PM"),
            ("%j %U %W %V %G %u %w", "040 05 06 06 2024 5 5"),
            (
                "%c|%x|%X|%F|%T|%D|%R",
                "Fri Feb  9 17:05:03 2024|02/09/24|17:05:03|2024-02-09|17:05:03|02/09/24|17:05",
            ),
            ("100%% %e%z%Z", "100%  9"),
        ];
        for (format, expected) in cases {
            assert_eq!(strftime(format, now).unwrap(), expected, "{format}");
        }
    }

    #[test]
    fn an_unknown_directive_is_named() {
        let error = strftime("%Y %Q", OffsetDateTime::UNIX_EPOCH)
            .unwrap_err()
            .to_string();
        assert!(error.contains("%Q"), "{error}");
        assert!(strftime("50%", OffsetDateTime::UNIX_EPOCH).is_err());
    }
}
