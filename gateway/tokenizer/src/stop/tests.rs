use regex::Regex;

use super::*;

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

fn matcher(stops: &[&str], regexes: &[&str], no_stop_trim: bool) -> StopMatcher {
    StopMatcher::new(strings(stops), strings(regexes), no_stop_trim).unwrap()
}

/// The whole text and the match, with the text in pieces.
fn run(mut matcher: StopMatcher, pieces: &[&str]) -> (String, Option<String>) {
    let mut text = String::new();
    for piece in pieces {
        text.push_str(&matcher.push(piece).text);
    }
    let end = matcher.end();
    (text + &end.text, end.matched)
}

/// Every cut of the text into two and three pieces, and into single characters, gives what one piece gives.
fn on_any_split(
    stops: &[&str],
    regexes: &[&str],
    no_stop_trim: bool,
    text: &str,
) -> (String, Option<String>) {
    let fresh = || matcher(stops, regexes, no_stop_trim);
    let whole = run(fresh(), &[text]);
    let ends: Vec<usize> = text
        .char_indices()
        .map(|(at, _)| at)
        .chain([text.len()])
        .collect();
    for (at, &first) in ends.iter().enumerate() {
        for &second in &ends[at..] {
            let pieces = [&text[..first], &text[first..second], &text[second..]];
            assert_eq!(run(fresh(), &pieces), whole, "{pieces:?}");
        }
    }
    let single: Vec<&str> = ends.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
    assert_eq!(run(fresh(), &single), whole);
    whole
}

#[test]
fn stop_strings_cut_at_the_match_that_ends_first() {
    let cases: [(&[&str], &str, &str, Option<&str>); 14] = [
        (&["\n"], "Is it?\nNo", "Is it?", Some("\n")),
        (&["</s>", "\n\n"], "a\nb</s>c\n\n", "a\nb", Some("</s>")),
        (&["abc"], "ababc", "ab", Some("abc")),
        (&["aab"], "aaab", "a", Some("aab")),
        (&["abab"], "abaabab", "aba", Some("abab")),
        (&["abcd", "bc"], "xabcd", "xa", Some("bc")),
        (&["bc", "abc"], "xabc", "x", Some("abc")),
        (&["ab", "abc"], "xabc", "x", Some("ab")),
        (&["stop"], "sto", "sto", None),
        (&["stop"], "", "", None),
        (&["日本", "🦙"], "x日日本🦙", "x日", Some("日本")),
        (&["é"], "e\u{301}é", "e\u{301}", Some("é")),
        (&["a.c*"], "abc a.c* d", "abc ", Some("a.c*")),
        (&["x", "x"], "axb", "a", Some("x")),
    ];
    for (stops, text, expected, matched) in cases {
        let found = on_any_split(stops, &[], false, text);
        assert_eq!(
            found,
            (expected.to_owned(), matched.map(str::to_owned)),
            "{stops:?} in {text:?}"
        );
    }
}

#[test]
fn without_trimming_the_text_ends_behind_the_match() {
    let found = on_any_split(&["END", "\n"], &[], true, "a ENEND b");
    assert_eq!(found, ("a ENEND".to_owned(), Some("END".to_owned())));
    let found = on_any_split(&[], &["[0-9]+;"], true, "a 12;b");
    assert_eq!(found, ("a 12;".to_owned(), Some("[0-9]+;".to_owned())));
}

#[test]
fn regexes_match_on_any_split() {
    let cases: [(&[&str], &str, &str, Option<usize>); 14] = [
        (&[r"\d{3}"], "a1b12c1234", "a1b12c", Some(0)),
        (&[r"\d+"], "abc123", "abc", Some(0)),
        (&["(?i)stop"], "Please StOp now", "Please ", Some(0)),
        (&["a+b", "aab"], "caaab", "c", Some(0)),
        (&[r"\n\s*\n"], "x\n  \ny", "x", Some(0)),
        (&["colou?r"], "color colour", "", Some(0)),
        (&["^b", "(?m)^c"], "ab\nb\nc", "ab\nb\n", Some(1)),
        (&[r"\bEND\b"], "ENDING, BEND. END!", "ENDING, BEND. ", Some(0)),
        (&[r"\bEND\b"], "the END", "the ", Some(0)),
        (&["(?m)^END$"], "END it\nEND\nx", "END it\n", Some(0)),
        (&["END$"], "END END", "END ", Some(0)),
        (&["END$"], "END.", "END.", None),
        (&[r"\p{Han}{2}"], "日a日本語", "日a", Some(0)),
        (&[r"é\B"], "é éé", "é ", Some(0)),
    ];
    for (regexes, text, expected, matched) in cases {
        let found = on_any_split(&[], regexes, false, text);
        let matched = matched.map(|at| regexes[at].to_owned());
        assert_eq!(found, (expected.to_owned(), matched), "{regexes:?} in {text:?}");
    }
}

#[test]
fn strings_and_regexes_compete_by_where_they_end() {
    let found = on_any_split(&["23"], &["1.*4"], false, "01234");
    assert_eq!(found, ("01".to_owned(), Some("23".to_owned())));
    let found = on_any_split(&["34"], &["1.3"], false, "01234");
    assert_eq!(found, ("0".to_owned(), Some("1.3".to_owned())));
    let found = on_any_split(&["3"], &["1.3"], false, "01234");
    assert_eq!(found, ("0".to_owned(), Some("1.3".to_owned())));
}

/// The definition, slowly: the shortest beginning of the text that has a match at its end, and of the matches
/// there the longest.
fn by_definition(stops: &[&str], regexes: &[&str], text: &str) -> (String, Option<String>) {
    let patterns: Vec<(&str, Regex)> = stops
        .iter()
        .map(|stop| (*stop, regex::escape(stop)))
        .chain(regexes.iter().map(|source| (*source, (*source).to_owned())))
        .map(|(name, source)| (name, Regex::new(&format!("^(?:{source})$")).unwrap()))
        .collect();
    let places: Vec<usize> = text
        .char_indices()
        .map(|(at, _)| at)
        .chain([text.len()])
        .collect();
    for &end in &places {
        for &start in places.iter().filter(|start| **start < end) {
            if let Some((name, _)) = patterns
                .iter()
                .find(|(_, regex)| regex.is_match(&text[start..end]))
            {
                return (text[..start].to_owned(), Some((*name).to_owned()));
            }
        }
    }
    (text.to_owned(), None)
}

#[test]
fn all_short_texts_give_what_the_definition_says() {
    let sets: [(&[&str], &[&str]); 6] = [
        (&["ab"], &[]),
        (&["aba", "bb"], &[]),
        (&["aab", "ab", "baab"], &[]),
        (&["abba"], &["b[^b]b"]),
        (&[], &["a+b+a", "bab"]),
        (&["bbbb"], &["(ab|ba){2}", "é.é"]),
    ];
    for (stops, regexes) in sets {
        for code in 0..3_u32.pow(6) {
            let text: String = (0..6)
                .map(|place| ['a', 'b', 'é'][(code / 3_u32.pow(place) % 3) as usize])
                .collect();
            let expected = by_definition(stops, regexes, &text);
            let single: Vec<String> = text.chars().map(String::from).collect();
            let single: Vec<&str> = single.iter().map(String::as_str).collect();
            assert_eq!(
                run(matcher(stops, regexes, false), &single),
                expected,
                "{text} {stops:?} {regexes:?}"
            );
            assert_eq!(
                run(matcher(stops, regexes, false), &[&text]),
                expected,
                "{text} {stops:?} {regexes:?}"
            );
        }
    }
}

#[test]
fn only_text_that_may_begin_a_stop_is_held() {
    let mut matcher = matcher(&["</s>", "<|end|>"], &[], false);
    assert_eq!(matcher.push("Hello <").text, "Hello ");
    assert_eq!(matcher.push("b> <").text, "<b> ");
    assert_eq!(matcher.push("/").text, "");
    assert_eq!(matcher.push("s").text, "");
    assert_eq!(matcher.push("<").text, "</s");
    assert_eq!(
        matcher.push("|end|"),
        StopProgress {
            text: String::new(),
            matched: None
        }
    );
    let end = StopProgress {
        text: String::new(),
        matched: Some("<|end|>".to_owned()),
    };
    assert_eq!(matcher.push("> more"), end);
    assert_eq!(matcher.push("and more"), end);
    assert_eq!(matcher.end(), end);
}

#[test]
fn without_stops_text_passes_at_once() {
    let mut matcher = matcher(&[], &[], false);
    assert_eq!(
        matcher.push("<"),
        StopProgress {
            text: "<".to_owned(),
            matched: None
        }
    );
    assert_eq!(matcher.end(), StopProgress::default());
}

#[test]
fn a_regex_holds_text_no_longer_than_its_window() {
    let long = "xé".repeat(REGEX_WINDOW);
    let mut open = matcher(&[], &["x.*END"], false);
    let given = open.push(&long).text;
    let held = long.len() - given.len();
    assert!((REGEX_WINDOW..REGEX_WINDOW + 2).contains(&held), "{held}");
    let end = open.push("END");
    assert_eq!(end.matched.as_deref(), Some("x.*END"));
    let whole = matcher(&[], &["x.*END"], false).push(&format!("{long}END"));
    assert_eq!(whole.text, given + &end.text);
    let found = on_any_split(&[], &["<.*>"], false, "a <b c> d");
    assert_eq!(found, ("a ".to_owned(), Some("<.*>".to_owned())));
}

#[test]
fn stop_strings_may_be_longer_than_the_window() {
    let long = "ab".repeat(REGEX_WINDOW);
    let text = format!("xab{long}y");
    let (given, matched) = run(matcher(&[&long], &["z{2}"], false), &[&text[..700], &text[700..]]);
    assert_eq!((given.as_str(), matched.is_some()), ("x", true));
}

#[test]
fn stops_that_cannot_work_are_refused() {
    let new =
        |stops: &[&str], regexes: &[&str]| StopMatcher::new(strings(stops), strings(regexes), false).err();
    assert_eq!(new(&["a", ""], &[]), Some(StopError::EmptyStop));
    assert_eq!(
        new(&[], &["a*"]),
        Some(StopError::MatchesEmpty {
            pattern: "a*".to_owned()
        })
    );
    assert!(matches!(new(&[], &["(a"]), Some(StopError::Invalid { pattern, .. }) if pattern == "(a"));
    assert!(matches!(new(&[], &[r"(?=a)b"]), Some(StopError::Invalid { .. })));
    assert!(matches!(new(&[], &["[a&&b]"]), Some(StopError::Invalid { .. })));
    assert!(matches!(
        new(&[], &[r"(\w{100}){100}"]),
        Some(StopError::TooLarge { .. })
    ));
}
