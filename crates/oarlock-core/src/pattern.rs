//! Patterns of lock names, as `ls` and access rules use them.

/// Whether `name` is what `pattern` means: `*` is any text, `?` one character, the rest itself.
///
/// # Examples
/// ```
/// use oarlock_core::pattern::matches;
/// assert!(matches("deploy/*", "deploy/prod/eu"));
/// assert!(!matches("deploy/?", "deploy/prod"));
/// ```
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where the last star stood, and how much of the name it has taken so far.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match &mut star {
                Some((at, taken)) => {
                    *taken += 1;
                    (p, n) = (*at + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_mean_what_shells_mean() {
        let yes =
            [("*", ""), ("*", "a/b"), ("a*", "abc"), ("*c", "abc"), ("a?c", "abc"), ("a*b*c", "axxbyyc"), ("", "")];
        for (pattern, name) in yes {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        let no = [("a", "ab"), ("?", ""), ("a*c", "ab"), ("", "a"), ("a*b*c", "acb"), ("*b", "abc")];
        for (pattern, name) in no {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        // Must not take exponential time.
        assert!(!matches(&"*a".repeat(200), &"b".repeat(1000)));
    }
}
