//! The fewest rights that locks need. Every test of them, and `oarlock init --print`, takes them from here.

use crate::config::{Config, Layout};
use crate::keys::BESIDE;

/// The commands (`etcdctl`), one on a line, that make a role called `user` with what locks of this configuration need,
/// and no more, and give it to the user of that name.
#[must_use]
pub fn rights(config: &Config, user: &str) -> String {
    let (user, prefix) = (word(user), word(&config.prefix));
    let prefixes = match config.layout {
        Layout::Native => vec![prefix],
        Layout::Go => vec![prefix, BESIDE.to_owned()],
    };
    let mut commands = format!("etcdctl role add {user}\n");
    for prefix in prefixes {
        commands += &format!("etcdctl role grant-permission {user} readwrite {prefix} --prefix=true\n");
    }
    commands + &format!("etcdctl user grant-role {user} {user}\n")
}

/// One word of a shell.
fn word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:@%+=,".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_each_name_as_one_word() {
        let config = Config { prefix: "a team's:".to_owned(), ..Config::new(["localhost:2379"]) };
        let printed = rights(&config, "ada $HOME");
        assert!(printed.contains(r"'ada $HOME' readwrite 'a team'\''s:' --prefix=true"), "{printed}");
    }
}
